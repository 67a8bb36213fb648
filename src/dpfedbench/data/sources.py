"""Where real data come from: a local folder, or else the address where the authors publish them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import pickle
import socket
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dpfedbench.errors import BenchError
from dpfedbench.files import check_readable, reading
from dpfedbench.lazy import np

if TYPE_CHECKING:
    from PIL import Image
    from torchvision.datasets import utils
else:
    from dpsum.lazy import Lazy

    Image = Lazy("PIL.Image")  # a plan reads the options of data sets without it
    utils = Lazy("torchvision.datasets.utils")  # slow to import, and not needed with a local copy

ENVIRONMENT = "DPFEDBENCH_DATA"
TIMEOUT_S = 30.0

Files = dict[str, Callable[[], bytes]]
"""What reads each file of a folder or archive, by its path below the root, with slashes."""


def local_folder(local_dir: Path | str | None) -> Path | None:
    """The folder that holds data already here: `local_dir`, else the environment variable DPFEDBENCH_DATA.

    Raises:
        BenchError: the folder is named but is not there.
    """
    named = local_dir or os.environ.get(ENVIRONMENT) or None
    if named is None:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise BenchError(
            f"the local data folder {folder} is not there: correct data.local_dir or {ENVIRONMENT}, "
            f"or unset it to download"
        )
    return folder


def find_local(folder: Path | None, subfolders: tuple[str, ...], names: tuple[str, ...]) -> Path | None:
    """The first of `names` found in one of `subfolders` of the local folder, or in the folder itself.

    Raises:
        BenchError: it, or a folder above it, cannot be read.
    """
    if folder is None:
        return None
    for place in (*[folder / subfolder for subfolder in subfolders], folder):
        for name in names:
            with reading(place / name):
                there = (place / name).exists()
            if there:
                check_readable(place / name)
                return place / name
    return None


def place_for(local: Path | None, subfolder: str) -> str:
    """Where a local copy may be put, for messages."""
    return f"{local / subfolder}" if local else f"FOLDER/{subfolder} with data.local_dir (or {ENVIRONMENT}) = FOLDER"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A published data set, as far as errors and archives of it go.

    Attributes:
        name: of the data set, for messages.
        largest: bytes that a file of it can have at most.
        fetched: whether it is fetched where there is no copy.
    """

    name: str
    largest: int = 0
    fetched: bool = True

    def damaged(self, path: Path, what: object) -> BenchError:
        """The error for a local copy whose content is wrong; `what` says how."""
        or_fetch = ", or leave it out to download one" if self.fetched else ""
        return BenchError(
            f"{path} is damaged or not {self.name}'s ({what}): delete it and put an undamaged copy in its place"
            + or_fetch
        )

    def files(self, path: Path) -> Files:
        """The files of a folder or archive, as `held_files`.

        Raises:
            BenchError: it is damaged, or a file is too large.
        """
        try:
            return held_files(path, largest=self.largest)
        except ValueError as error:
            raise self.damaged(path, error) from error

    def picture(self, path: Path, name: str, read: Callable[[], bytes], size: int, mode: str) -> Image.Image:
        """A file of an archive as a square picture of so many pixels a side, in Pillow's `mode`.

        Raises:
            BenchError: it is damaged, or of another size.
        """
        try:
            return decoded_image(read(), size=(size, size)).convert(mode)
        except (OSError, ValueError) as error:
            raise self.damaged(path, f"{name}: {error}") from error


def listed(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def check_published(path: Path, wanted: str, folder: str) -> None:
    """Refuse a local archive that is not the published one, byte for byte.

    Args:
        path: the archive.
        wanted: its checksum.
        folder: what is extracted from it, which is judged by its content.

    Raises:
        BenchError: it is another.
    """
    if (digest := utils.calculate_md5(str(path))) != wanted:
        raise BenchError(
            f"{path} is not the published archive (md5 {digest}, not {wanted}): delete it and put an undamaged copy in "
            f"its place, leave it out to download one, or, if it was packed anew, put the folder {folder} extracted "
            "from it there"
        )


def fetch(url: str, md5: str, download_dir: Path, *, local: Path | None, subfolder: str) -> Path:
    """Download one file through torchvision, which shows progress and checks the checksum.

    A file that is there already with the right checksum is not fetched again.

    Args:
        url: where the authors publish it.
        md5: the checksum that torchvision records for it.
        download_dir: where it is kept.
        local: the local data folder in use, for the message.
        subfolder: the place of the file in a local data folder, for the message.

    Raises:
        BenchError: no network, or the file that came is not the one published.
    """
    name = url.rsplit("/", 1)[1]
    path = download_dir / name
    if utils.check_integrity(str(path), md5):
        return path
    place = place_for(local, subfolder)
    try:
        download_dir.mkdir(parents=True, exist_ok=True)
        with _timeout(TIMEOUT_S):
            utils.download_url(url, str(download_dir), filename=name, md5=md5)
    except PermissionError as error:
        raise BenchError(f"no permission to write {path}: make its folder writable, or choose another") from error
    except RuntimeError as error:  # torchvision's word for a wrong checksum
        path.unlink(missing_ok=True)
        raise BenchError(
            f"{name} as fetched from {url} does not have the published checksum (md5 {md5}); it was "
            f"deleted: run again, or get the file another way and put it in {place}"
        ) from error
    except (OSError, HTTPException) as error:  # urllib's own errors are OSErrors
        path.unlink(missing_ok=True)
        raise BenchError(
            f"cannot download {name} ({error}): get it from {url} and put it in {place}, or run where "
            f"there is a network"
        ) from error
    return path


@contextlib.contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """urllib waits for ever by default; a network that swallows packets must not hang the run."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def held_files(path: Path, *, largest: int, total: int | None = None) -> Files:
    """The files of a folder, or of a zip or tar archive, by path below its root, with slashes; each with what reads it.

    Of a folder or a zip archive nothing is read yet; a tar archive has to be read in its order, and is read whole.

    Args:
        path: the folder or archive.
        largest: bytes that a file of the data set can have at most; one that says it has more is refused, and one that
            has more than it says does not pass its checksum.
        total: bytes that all files of a tar archive can have together; None: any number.

    Raises:
        ValueError: it is no archive, or a file is too large; the reading raises it where a file is damaged, encrypted
            or packed in a way that Python does not know. The message is for people.
        BenchError: it cannot be opened, or a file of a folder cannot.
    """

    def read(member: zipfile.ZipInfo) -> bytes:
        try:
            return archive.read(member)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
            # RuntimeError: encrypted; NotImplementedError, one of these: an unknown compression.
            raise ValueError(f"{member.filename}: {error}") from error

    def content(file: Path) -> bytes:
        with reading(file):
            return file.read_bytes()

    check_readable(path)
    if path.is_dir():
        below = [file for file in path.rglob("*") if file.is_file()]
        return {file.relative_to(path).as_posix(): partial(content, file) for file in below}
    try:
        if path.suffix != ".zip":
            return _untarred(path, largest, math.inf if total is None else total)
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, NotImplementedError) as error:
        raise ValueError(str(error)) from error
    members = [member for member in archive.infolist() if "__MACOSX" not in member.filename]
    for member in members:
        if member.file_size > largest:
            raise ValueError(f"{member.filename} has {member.file_size:,} bytes, and at most {largest:,} are possible")
    return {member.filename: partial(read, member) for member in members}


def _untarred(path: Path, largest: int, room: float) -> Files:
    members: Files = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and (handle := archive.extractfile(member)) is not None:
                content = limited(handle, int(min(largest, room)))
                room -= len(content)
                members[member.name] = partial(bytes, content)
    return members


def limited(handle: IO[bytes], largest: int) -> bytes:
    """What a packed stream holds, read no further than a file of the data set can be long.

    Raises:
        ValueError: it holds more.
    """
    content = handle.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it holds more than the {largest:,} bytes that are possible")
    return content


def decoded_image(source: Path | bytes, *, size: tuple[int, int] | None = None) -> Image.Image:
    """A picture, decoded; its size is looked at first.

    Args:
        source: a file, or its bytes.
        size: the width and height that it must have; None: any, up to Pillow's limit (`MAX_IMAGE_PIXELS`).

    Raises:
        ValueError: it cannot be decoded, or is of another size; the message is for people.
        BenchError: the file cannot be opened.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                if size is not None and image.size != size:
                    raise ValueError(f"it is {image.size[0]}×{image.size[1]}, not {size[0]}×{size[1]}")
                image.load()
                return image
    except PermissionError as error:
        raise BenchError(f"no permission to read {source!s}: make it readable") from error
    except Exception as error:  # a damaged file can raise nearly anything
        raise ValueError(str(error) or type(error).__name__) from error


class _ArrayUnpickler(pickle.Unpickler):
    """Reads plain containers and numpy arrays, nothing else: a pickle can otherwise run any code."""

    _ALLOWED = {  # noqa: RUF012 (constant)
        ("_codecs", "encode"): lambda text, encoding: text.encode(encoding),
        ("collections", "OrderedDict"): dict,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }
    _OF_NUMPY = (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))

    def find_class(self, module: str, name: str) -> Any:
        """Only the names that pickled arrays need."""
        package, _, part = module.rpartition(".")
        if package in ("numpy.core", "numpy._core") and (part, name) in self._OF_NUMPY:
            return getattr(getattr(np._core, part), name)  # type: ignore[attr-defined]
        if (module, name) in self._ALLOWED:
            return self._ALLOWED[module, name]
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no array")


def read_pickle(source: Path | bytes, called: str) -> Any:
    """Read a pickle of containers, strings, numbers and numpy arrays (Python 2's too); runs no code from it.

    Args:
        source: a file, or its bytes.
        called: what to call it in the message.

    Raises:
        BenchError: it cannot be opened, is damaged, or holds anything else.
    """
    if isinstance(source, Path):
        check_readable(source)
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as handle:
            return _ArrayUnpickler(handle, encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise BenchError(
            f"{called} cannot be read as a pickle of arrays ({error}): delete it and put an undamaged copy in its place"
        ) from error
