"""Where real data comes from: a local folder first, else the address where its authors publish it."""

import contextlib
import io
import os
import pickle
import socket
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dpfedbench.errors import BenchError

ENVIRONMENT = "DPFEDBENCH_DATA"
TIMEOUT_S = 30.0


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
    """The first of `names` found in one of `subfolders` of the local folder, or in the folder itself."""
    if folder is None:
        return None
    for place in (*[folder / subfolder for subfolder in subfolders], folder):
        for name in names:
            if (place / name).exists():
                return place / name
    return None


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
    from torchvision.datasets.utils import check_integrity, download_url  # slow to import, often not needed

    name = url.rsplit("/", 1)[1]
    path = download_dir / name
    if check_integrity(str(path), md5):
        return path
    place = f"{local / subfolder}" if local else f"FOLDER/{subfolder} with data.local_dir (or {ENVIRONMENT}) = FOLDER"
    try:
        download_dir.mkdir(parents=True, exist_ok=True)
        with _timeout(TIMEOUT_S):
            download_url(url, str(download_dir), filename=name, md5=md5)
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


class _ArrayUnpickler(pickle.Unpickler):
    """Reads plain containers and numpy arrays, nothing else: a pickle can otherwise run any code."""

    _ALLOWED = {  # noqa: RUF012 (constant)
        ("_codecs", "encode"): lambda text, encoding: text.encode(encoding),
        ("collections", "OrderedDict"): dict,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Only the names that pickled arrays need."""
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name in (
            "_reconstruct",
            "scalar",
        ):
            return getattr(np._core.multiarray, name)  # type: ignore[attr-defined]
        if module in ("numpy.core.numeric", "numpy._core.numeric") and name == "_frombuffer":
            return getattr(np._core.numeric, name)  # type: ignore[attr-defined]
        if (module, name) in self._ALLOWED:
            return self._ALLOWED[module, name]
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no array")


def read_pickle(source: Path | bytes | BinaryIO, called: str) -> Any:
    """Read a pickle of containers, strings, numbers and numpy arrays (Python 2's too); runs no code from it.

    Args:
        source: a file, its bytes, or an open binary file.
        called: what to call it in the message.

    Raises:
        BenchError: it is damaged, or holds anything else.
    """
    try:
        with contextlib.ExitStack() as stack:
            if isinstance(source, Path):
                handle: BinaryIO = stack.enter_context(open(source, "rb"))
            else:
                handle = io.BytesIO(source) if isinstance(source, bytes) else source
            return _ArrayUnpickler(handle, encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise BenchError(
            f"{called} cannot be read as a pickle of arrays ({error}): delete it and put an undamaged copy in its place"
        ) from error
