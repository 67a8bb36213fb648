"""Errors of writing a file, as one-line messages."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from dpsum.errors import DpsumError

_NO_ROOM = "no room to write {path}: free some space and run the same command again"
_FORBIDDEN = (
    "no permission to write {path}: make its folder writable, or choose another"
)
_IN_THE_WAY = (
    "cannot write {path}: a file lies where a folder belongs, or a folder where the"
    " file does; move it away"
)
_MENDED = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EISDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENAMETOOLONG: (
        "cannot write {path}: the path is too long, choose a shorter folder or name"
    ),
    errno.EIO: "cannot write {path}: the disk does not answer as it should, check it",
    errno.EMFILE: (
        "cannot write {path}: too many files are open, raise the limit (ulimit -n)"
    ),
}
_PROBE = 1 << 16  # bytes


@contextlib.contextmanager
def writing(
    path: str | os.PathLike[str], temporary: Path | None = None
) -> Iterator[None]:
    """Convert errors of writing a file into a DpsumError that names the file.

    Covers a full disk, missing permission and the like. torch and numpy report a full
    disk only as a failed write. The disk counts as full if the temporary file cannot
    grow by a few bytes either.

    Args:
        path: the file that is written.
        temporary: the temporary file that becomes `path`, if there is one.

    Raises:
        DpsumError: the file cannot be written.
    """
    try:
        yield
    except DpsumError:
        raise
    except Exception as error:
        number = number_of(error) or (temporary and _refused(temporary))
        if number not in _MENDED:
            raise
        raise DpsumError(_MENDED[number].format(path=path)) from error


def number_of(error: Exception) -> int | None:
    """Return the operating system's number of an error; None if there is none.

    safetensors has the number in its message only. numpy checks for free space before
    it writes, and its message has no number.
    """
    if match := re.search(r"\(os error (\d+)\)", str(error)):
        return int(match[1])
    if "Not enough free space" in str(error):
        return errno.ENOSPC
    return getattr(error, "errno", None)


def _refused(path: Path) -> int | None:
    try:
        with open(path, "ab") as handle:
            handle.write(bytes(_PROBE))
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        return error.errno
    return None
