"""Sources of real data: a local folder, or else the authors' download address."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import pickle
import re
import socket
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedbench.data.folder_files import data_files, is_by_product
from dpfedbench.data.images import with_progress
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np

if TYPE_CHECKING:
    from PIL import Image
    from torchvision import datasets as datasets
    from torchvision.datasets import utils
else:
    from dpsum.lazy import Lazy

    # A plan reads the options of data sets without importing Pillow. torchvision is
    # slow to import.
    Image = Lazy("PIL.Image")
    datasets = Lazy("torchvision.datasets")
    utils = Lazy("torchvision.datasets.utils")

ENVIRONMENT = "DPFEDBENCH_DATA"
TIMEOUT_S = 30.0


def local_folder(local_dir: Path | str | None) -> Path | None:
    """Return the local data folder: `local_dir`, else the variable DPFEDBENCH_DATA.

    Raises:
        BenchError: the folder is named but does not exist.
    """
    named = local_dir or os.environ.get(ENVIRONMENT) or None
    if named is None:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise BenchError(
            f"the local data folder {folder} does not exist: correct data.local_dir"
            f" or {ENVIRONMENT}, or unset it to download"
        )
    return folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A published data set, the possible places of a local copy, and its checks.

    Attributes:
        name: name of the data set, for messages.
        folders: subfolders of the local data folder in which a copy may lie. Messages
            name the first.
        parts: possible names of each part, by the part's name for messages. One of
            them must exist for each part, and all parts lie in one folder.
        check: checksum or content that a reading compares.
        downloaded: whether missing files are downloaded from the publisher.
        copy_bytes: size of the archives of a copy that was at hand, in bytes; None: not
            recorded.
        in_root: whether the files may lie in the local data folder itself, too.
    """

    name: str
    folders: tuple[str, ...]
    parts: Mapping[str, Sequence[str]]
    check: str
    downloaded: bool
    copy_bytes: int | None = None
    in_root: bool = True

    def find_whole(self, local: Path | None) -> Copy | None:
        """Return the copy of a data set of one part; None without one."""
        return next(iter(self.find(local).values()), None)

    def find(self, local: Path | None) -> dict[str, Copy]:
        """Return the copies of a data set's parts, which all lie in one folder.

        Data sets can have equal file names (MNIST and Fashion-MNIST). So parts are
        never taken from several folders. `folders` are searched first, then the local
        folder itself; of several possible names of a part, the first counts.

        Args:
            local: local data folder, or None.

        Returns:
            A copy of each part, or {} if no folder has any.

        Raises:
            BenchError: the first folder with a part does not have all.
        """
        if local is None:
            return {}
        for folder in (*[local / folder for folder in self.folders], local):
            copies: dict[str, Copy] = {}
            for part, names in self.parts.items():
                present = [name for name in names if (folder / name).exists()]
                if present:
                    copies[part] = Copy(self, folder / present[0])
            if len(copies) == len(self.parts):
                return copies
            if copies:
                missing = next(part for part in self.parts if part not in copies)
                raise BenchError(
                    f"{folder} has only {len(copies)} of the {len(self.parts)} parts of"
                    f" {self.name} ({missing} is missing): complete this copy, or move"
                    " it away to use another"
                )
        return {}

    def missing(self, local: Path | None) -> tuple[str, ...]:
        """Return the parts that the folder with the most parts of a copy lacks."""
        if local is None:
            return tuple(self.parts)
        lacking = []
        folders = [local / name for name in self.folders]
        if self.in_root:
            folders.append(local)
        for folder in folders:
            absent = [
                part
                for part, names in self.parts.items()
                if not any((folder / name).exists() for name in names)
            ]
            lacking.append(tuple(absent))
        return min(lacking, key=len)

    @property
    def place(self) -> str:
        """The folder for a local copy, for messages."""
        return (
            f"FOLDER/{self.folders[0]} with data.local_dir (or {ENVIRONMENT}) = FOLDER"
        )

    def fetch(self, url: str, md5: str, download_dir: Path) -> Copy:
        """Download one file through torchvision.

        torchvision shows progress and checks the checksum. A file that already has the
        right checksum is not downloaded again.

        Args:
            url: address where the authors publish the file.
            md5: its checksum.
            download_dir: folder for downloads.

        Raises:
            BenchError: there is no network, or the downloaded file has another
                checksum.
        """
        name = url.rsplit("/", 1)[1]
        path = download_dir / name
        if utils.check_integrity(str(path), md5):
            return Copy(self, path)
        try:
            download_dir.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as stack:
                # By default urllib waits for ever. A network that drops packets must
                # not block the run.
                stack.callback(socket.setdefaulttimeout, socket.getdefaulttimeout())
                socket.setdefaulttimeout(TIMEOUT_S)
                utils.download_url(url, str(download_dir), filename=name, md5=md5)
        except (OSError, HTTPException, RuntimeError) as error:
            # urllib's own errors are OSErrors; a wrong checksum is a RuntimeError.
            path.unlink(missing_ok=True)
            raise BenchError(
                f"cannot download {name} with the published checksum ({error}): get it"
                f" from {url} and put it in {self.place}, or run on a machine with"
                " network access"
            ) from error
        return Copy(self, path)

    @property
    def published(self) -> Any:
        """torchvision's class for this data set, which knows the download address."""
        return getattr(datasets, self.name.replace("-", ""))


@dataclasses.dataclass(frozen=True)
class Copy:
    """Local copy of a data set: a folder, a zip or tar archive, or one file."""

    source: Source
    path: Path

    def damaged(self, fault: object, name: str = "") -> BenchError:
        """Return the error for a copy with wrong content.

        Args:
            fault: description of the fault.
            name: the damaged file of the copy. "": the copy itself.
        """
        path = self.path
        if name and path.is_dir():
            path = path / name
        elif name:
            fault = f"{name}: {fault}"
        return BenchError(
            f"{path} is damaged or not {self.source.name}'s ({fault}): delete it and put"
            " an undamaged copy in its place"
        )

    @contextlib.contextmanager
    def judged(self, name: str = "") -> Iterator[None]:
        """Turn errors of reading a damaged copy into one line that names the copy.

        Args:
            name: the file that is read, if the copy has several.

        Raises:
            BenchError: the copy is damaged.
        """
        try:
            yield
        except BenchError:
            raise
        except Exception as error:  # a damaged file can raise nearly anything
            raise self.damaged(str(error) or type(error).__name__, name) from error

    @functools.cached_property
    def files(self) -> Mapping[str, Callable[[], bytes]]:
        """Return a reader for each file of a folder or archive, by its relative path.

        Paths have slashes. Files of a folder or a zip archive are not read yet. A tar
        archive can only be read in order, so it is read completely.

        Raises:
            BenchError: the copy cannot be opened or is damaged.
        """
        if self.path.is_dir():
            return {
                file.relative_to(self.path).as_posix(): file.read_bytes
                for file in data_files(self.path)
            }
        with self.judged():
            members = _unzipped if self.path.suffix == ".zip" else _untarred
            return {
                name: read
                for name, read in members(self.path)
                if not is_by_product(name)
            }

    def read(self, name: str) -> bytes:
        """Return the content of one of `files`.

        Raises:
            BenchError: the file is damaged.
        """
        with self.judged(name):
            return self.files[name]()

    def check_counts(self, counts: Mapping[str, int], examples: int) -> None:
        """Refuse a copy in which a class has another number of pictures.

        Raises:
            BenchError: the message names the first such classes.
        """
        wrong = [
            f"{name} has {count}" for name, count in counts.items() if count != examples
        ]
        if wrong:
            raise self.damaged(
                f"not every class has {examples} images: {', '.join(wrong[:3])}"
            )

    def pictures(
        self,
        classes: Mapping[str, Sequence[str]],
        *,
        examples: int,
        mode: str,
        size: int | None = None,
        side: int,
    ) -> np.ndarray:
        """Decode the pictures of classes.

        Args:
            classes: the names of each class's pictures among `files`.
            examples: required number of pictures per class.
            mode: Pillow's "L" (grey) or "RGB".
            size: required width and height of each picture. None: any.
            side: width and height after resizing with Lanczos's filter.

        Returns:
            uint8 [classes, examples, side, side, channels].

        Raises:
            BenchError: a picture is missing, damaged or of another size.
        """
        self.check_counts(
            {name: len(pictures) for name, pictures in classes.items()}, examples
        )
        pixels: np.ndarray = np.empty(
            (len(classes), examples, side, side, len(mode)), np.uint8
        )
        names = with_progress(classes.values(), f"reading {self.path.name}, class")
        for images, pictures in zip(pixels, names, strict=True):
            for image, name in zip(images, pictures, strict=True):
                with self.judged(name):
                    picture = decoded_image(self.files[name](), size=size).convert(mode)
                image[:] = np.asarray(
                    picture.resize((side, side), Image.Resampling.LANCZOS)
                ).reshape(image.shape)
        return pixels


def _unzipped(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    archive = zipfile.ZipFile(path)
    for member in archive.infolist():
        if not member.is_dir():
            yield member.filename, partial(archive.read, member.filename)


def _untarred(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    with tarfile.open(path) as archive:
        for member in archive:
            handle = archive.extractfile(member) if member.isfile() else None
            if handle is not None:
                yield member.name, partial(bytes, handle.read())


def by_class(names: Iterable[str], pattern: str) -> dict[str, list[str]]:
    """Group the names that match a pattern by its first group, the class.

    Names keep their order; classes are sorted.
    """
    classes: dict[str, list[str]] = {}
    for name in names:
        if match := re.search(pattern, name):
            classes.setdefault(match[1], []).append(name)
    return dict(sorted(classes.items()))


def decoded_image(source: Path | bytes, *, size: int | None = None) -> Image.Image:
    """Decode a picture.

    Args:
        source: a file, or its bytes.
        size: required width and height. None: any, up to Pillow's limit
            (`MAX_IMAGE_PIXELS`).

    Raises:
        ValueError: the picture has another size, or grey pixels of more than 8 bits,
            which Pillow would cut. Pillow raises other errors for damaged pictures.
    """
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    with Image.open(file) as image:
        if size is not None and image.size != (size, size):
            raise ValueError(
                f"it is {image.size[0]}×{image.size[1]}, not {size}×{size}"
            )
        if image.mode[0] in "IF":
            raise ValueError(f"its pixels are not of 8 bits, but {image.mode}")
        image.load()
        return image


_OF_ARRAYS = {
    "ndarray",
    "dtype",
    "_reconstruct",
    "scalar",
    "_frombuffer",
    "encode",
    "OrderedDict",
}
"""Functions and classes that pickled arrays need, by name."""


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler that accepts only plain containers and numpy arrays.

    An ordinary unpickler can run any code.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Resolve only the names that pickled arrays need."""
        package = module.partition(".")[0]
        if name in _OF_ARRAYS and package in ("numpy", "_codecs", "collections"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is not an array")


def read_pickle(path: Path) -> Any:
    """Read a pickle of containers, strings, numbers and numpy arrays (Python 2's too).

    No code from the pickle is run.

    Raises:
        pickle.UnpicklingError: the pickle holds anything else. A damaged one can raise
            nearly anything.
    """
    with open(path, "rb") as handle:
        return _ArrayUnpickler(handle, encoding="latin1").load()
