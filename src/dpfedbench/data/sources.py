"""Sources of real data: a local folder, or else the authors' download address."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import math
import os
import pickle
import re
import socket
import stat
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedbench.data.folder_files import (
    check_printable,
    data_files,
    is_by_product,
    tell_left_out,
)
from dpfedbench.data.images import Progress, with_progress
from dpfedbench.errors import BenchError
from dpfedbench.files import check_readable, reading
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

# RuntimeError: the archive is encrypted. NotImplementedError, a subclass: Python does
# not know its compression.
_UNPACKING = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,
)
_FAULTS = (*_UNPACKING, ValueError, KeyError, TypeError, AttributeError)
"""Exceptions from reading a damaged copy or a file of another kind."""


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
    """A published data set: possible places of a local copy, and its largest size.

    Attributes:
        name: name of the data set, for messages.
        folders: subfolders of the local data folder in which a copy may lie. Messages
            name the first.
        largest: maximal size of one file of an archive, in bytes.
        total: maximal size of all files together, in bytes.
        fetched: whether it is downloaded if there is no local copy.
    """

    name: str
    folders: tuple[str, ...] = ()
    largest: int = 0
    total: float = math.inf
    fetched: bool = True

    def find(self, local: Path | None, *names: str) -> Copy | None:
        """Return the first of `names` that exists in the local folder.

        `folders` are searched first, then the local folder itself. None: there is no
        copy.

        Raises:
            BenchError: the copy, or a folder above it, cannot be read.
        """
        if local is None:
            return None
        for folder in (*[local / folder for folder in self.folders], local):
            for name in names:
                with reading(folder / name):
                    exists = (folder / name).exists()
                if exists:
                    check_readable(folder / name)
                    return Copy(self, folder / name)
        return None

    def place(self, local: Path | None) -> str:
        """Return the folder for a local copy, for messages."""
        if local:
            return f"{local / self.folders[0]}"
        return (
            f"FOLDER/{self.folders[0]} with data.local_dir (or {ENVIRONMENT}) = FOLDER"
        )

    def fetch(self, url: str, md5: str, download_dir: Path, local: Path | None) -> Copy:
        """Download one file through torchvision.

        torchvision shows progress and checks the checksum. A file that already has the
        right checksum is not downloaded again.

        Args:
            url: address where the authors publish the file.
            md5: its checksum.
            download_dir: folder for downloads.
            local: the local data folder in use, for the message.

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
        except PermissionError as error:
            raise BenchError(
                f"no permission to write {path}: make its folder writable, or choose"
                " another"
            ) from error
        except RuntimeError as error:  # torchvision raises it for a wrong checksum
            path.unlink(missing_ok=True)
            raise BenchError(
                f"{name} as fetched from {url} does not have the published checksum"
                f" (md5 {md5}); it was deleted: run again, or get the file another way"
                f" and put it in {self.place(local)}"
            ) from error
        except (OSError, HTTPException) as error:  # urllib's own errors are OSErrors
            path.unlink(missing_ok=True)
            raise BenchError(
                f"cannot download {name} ({error}): get it from {url} and put it in"
                f" {self.place(local)}, or run on a machine with network access"
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
        or_fetch = ", or leave it out to download one" if self.source.fetched else ""
        return BenchError(
            f"{path} is damaged or not {self.source.name}'s ({fault}): delete it and put"
            " an undamaged copy in its place" + or_fetch
        )

    @contextlib.contextmanager
    def judged(self, name: str = "", wrong: str = "") -> Iterator[None]:
        """Turn errors of reading a damaged copy into one line that names the copy.

        Args:
            name: the file that is read, if the copy has several.
            wrong: explanation of the fault, placed before it.

        Raises:
            BenchError: the copy is damaged.
        """
        try:
            yield
        except _FAULTS as error:
            raise self.damaged(f"{wrong}: {error}" if wrong else error, name) from error

    @functools.cached_property
    def files(self) -> Mapping[str, Callable[[], bytes]]:
        """Return a reader for each file of a folder or archive, by its relative path.

        Paths have slashes. Files of a folder or a zip archive are not read yet. A tar
        archive can only be read in order, so it is read completely.

        Raises:
            BenchError: the copy cannot be opened, is damaged, or has more bytes than
                the data set can have. The readers raise it as well.
        """
        check_readable(self.path)
        if self.path.is_dir():
            return {
                file.relative_to(self.path).as_posix(): partial(_content, file)
                for file in data_files(self.path)
            }
        with self.judged():
            if self.path.suffix != ".zip":
                return self._untarred()
            archive = zipfile.ZipFile(self.path)
            largest = self.source.largest
        members = list[zipfile.ZipInfo]()
        left_out = list[str]()
        for member in archive.infolist():
            link = stat.S_ISLNK(member.external_attr >> 16)
            if link or is_by_product(member.filename):
                left_out.append(member.filename)
            else:
                check_printable(self.path, member.filename)
                members.append(member)
        tell_left_out(self.path, left_out)
        for member in members:
            if member.file_size > largest:
                message = (
                    f"{member.filename} has {member.file_size:,} bytes, and at most"
                    f" {largest:,} are possible"
                )
                raise self.damaged(message)
        if sum(member.file_size for member in members) > self.source.total:
            raise self.damaged(
                f"its files have more than {self.source.total:,} bytes, the most that"
                " the data set can have"
            )

        def read(name: str) -> bytes:
            with self.judged(name):
                return archive.read(name)

        return {member.filename: partial(read, member.filename) for member in members}

    def _untarred(self) -> dict[str, Callable[[], bytes]]:
        members: dict[str, Callable[[], bytes]] = {}
        room = self.source.total
        left_out = list[str]()
        with tarfile.open(self.path) as archive:
            for member in archive:
                if is_by_product(member.name):
                    left_out.append(member.name)
                elif (
                    member.isfile()
                    and (handle := archive.extractfile(member)) is not None
                ):
                    most = int(min(self.source.largest, room))
                    content = handle.read(most + 1)
                    if len(content) > most:
                        raise ValueError(
                            f"it holds more than {most:,} bytes, the most that the"
                            " file can have"
                        )
                    room -= len(content)
                    check_printable(self.path, member.name)
                    members[member.name] = partial(bytes, content)
        tell_left_out(self.path, left_out)
        return members

    def check_published(self, md5: str, folder: str) -> None:
        """Refuse an archive that is not the published one, byte for byte.

        Args:
            md5: its published checksum.
            folder: name of the folder extracted from it, which is checked by its
                content.

        Raises:
            BenchError: the archive is another one.
        """
        if (digest := utils.calculate_md5(str(self.path))) != md5:
            raise BenchError(
                f"{self.path} is not the published archive (md5 {digest}, not {md5}):"
                " delete it, then put an undamaged copy in its place or leave it out"
                " to download one; if you repacked it, put its extracted folder"
                f" {folder} there"
            )

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
                f"not every class has {examples} images: {listed(wrong)}"
            )

    def pictures(
        self,
        classes: Mapping[str, Sequence[str]],
        *,
        examples: int,
        mode: str,
        size: int | None = None,
        side: int,
        progress: Progress | None,
    ) -> np.ndarray:
        """Decode the pictures of classes.

        Args:
            classes: the names of each class's pictures among `files`.
            examples: required number of pictures per class.
            mode: Pillow's "L" (grey) or "RGB".
            size: required width and height of each picture. None: any.
            side: width and height after resizing with Lanczos's filter.
            progress: called after each class.

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
        names = with_progress(
            classes.values(), progress, f"reading {self.path.name}, class"
        )
        for images, pictures in zip(pixels, names, strict=True):
            for image, name in zip(images, pictures, strict=True):
                with self.judged(name):
                    picture = decoded_image(self.files[name](), size=size).convert(mode)
                image[:] = np.asarray(
                    picture.resize((side, side), Image.Resampling.LANCZOS)
                ).reshape(image.shape)
        return pixels


def _content(file: Path) -> bytes:
    with reading(file):
        return file.read_bytes()


def by_class(names: Iterable[str], pattern: str) -> dict[str, list[str]]:
    """Group the names that match a pattern by its first group, the class.

    Names keep their order; classes are sorted.
    """
    classes: dict[str, list[str]] = {}
    for name in names:
        if match := re.search(pattern, name):
            classes.setdefault(match[1], []).append(name)
    return dict(sorted(classes.items()))


def listed(names: Collection[str], most: int = 3) -> str:
    """Return the first names and the number of further names, as text."""
    return ", ".join([*names][:most]) + (
        f" and {len(names) - most} more" if len(names) > most else ""
    )


class DeepPixels(ValueError):
    """A picture has more than 8 bits per channel, which Pillow would cut or scale."""


def _check_depth(image: Image.Image) -> None:
    """Refuse 16-bit and floating-point pixels, grey or colour.

    The image is not loaded.

    Raises:
        DeepPixels: the image's mode or stored format has more than 8 bits per channel.
    """
    stored = image.mode
    for codec, _, _, settings in getattr(image, "tile", ()):
        codec_settings = settings if isinstance(settings, tuple) else (settings,)
        if (
            codec.startswith("ppm")
            and isinstance(codec_settings[-1], int)
            and codec_settings[-1] > 255
        ):
            stored = f"{image.mode} up to {codec_settings[-1]}"
        for name in codec_settings:
            if isinstance(name, str) and re.search(r";(16|24|32|64)", name):
                stored = name
    if image.mode[0] in "IF" or stored != image.mode:
        raise DeepPixels(f"its pixels are not of 8 bits, but {stored}")


def decoded_image(source: Path | bytes, *, size: int | None = None) -> Image.Image:
    """Decode a picture, after checking its size.

    Args:
        source: a file, or its bytes.
        size: required width and height. None: any, up to Pillow's limit
            (`MAX_IMAGE_PIXELS`).

    Raises:
        ValueError: the picture cannot be decoded or has another size. The message is
            for people.
        BenchError: the file cannot be opened.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(
                io.BytesIO(source) if isinstance(source, bytes) else source
            ) as image:
                if size is not None and image.size != (size, size):
                    raise ValueError(
                        f"it is {image.size[0]}×{image.size[1]}, not {size}×{size}"
                    )
                _check_depth(image)
                image.load()
                return image
    except PermissionError as error:
        raise BenchError(
            f"no permission to read {source!s}: make it readable"
        ) from error
    except DeepPixels:
        raise
    except Exception as error:  # a damaged file can raise nearly anything
        raise ValueError(str(error) or type(error).__name__) from error


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler that accepts only plain containers and numpy arrays.

    An ordinary unpickler can run any code.
    """

    _ALLOWED = {  # noqa: RUF012
        ("_codecs", "encode"): lambda text, encoding: text.encode(encoding),
        ("collections", "OrderedDict"): dict,
    }
    _NUMPY = ("ndarray", "dtype")
    _OF_NUMPY = (
        ("multiarray", "_reconstruct"),
        ("multiarray", "scalar"),
        ("numeric", "_frombuffer"),
    )

    def find_class(self, module: str, name: str) -> Any:
        """Resolve only the names that pickled arrays need."""
        package, _, part = module.rpartition(".")
        if package in ("numpy.core", "numpy._core") and (part, name) in self._OF_NUMPY:
            return getattr(getattr(np._core, part), name)  # type: ignore[attr-defined]
        if module == "numpy" and name in self._NUMPY:
            return getattr(np, name)
        if (module, name) in self._ALLOWED:
            return self._ALLOWED[module, name]
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is not an array")


def read_pickle(source: Path | bytes, called: str) -> Any:
    """Read a pickle of containers, strings, numbers and numpy arrays (Python 2's too).

    No code from the pickle is run.

    Args:
        source: a file, or its bytes.
        called: name of the source in messages.

    Raises:
        BenchError: the pickle cannot be opened, is damaged, or holds anything else.
    """
    try:
        with (
            io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb")
        ) as handle:
            return _ArrayUnpickler(handle, encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise BenchError(
            f"{called} cannot be read as a pickle of arrays ({error}): delete it and"
            " put an undamaged copy in its place"
        ) from error
