"""Files that are whole or absent: everything is written under a temporary name and renamed."""

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from dpfedbench.errors import BenchError

_HOST = platform.node().replace("/", "-") or "here"

written: set[Path] = set()
"""What this process has put in place."""


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success flush it to disk and rename it, else remove it.

    What a process that was killed left under a temporary name is removed by the next one to write the same file.

    Raises:
        BenchError: the folder cannot be made or written to.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{_HOST}.{os.getpid()}.part{final.suffix}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _sweep(final)
        yield temporary
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, final)
        written.add(final)
    except PermissionError as error:
        raise BenchError(f"no permission to write {final}: make its folder writable, or choose another") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sweep(final: Path) -> None:
    """Remove temporary files of `final` whose process was one of this machine's and is gone."""
    start, end = f".{final.name}.{_HOST}.", f".part{final.suffix}"
    for path in final.parent.iterdir():
        if path.name.startswith(start) and path.name.endswith(end):
            number = path.name[len(start) : -len(end)]
            if number.isdigit() and not psutil.pid_exists(int(number)):
                path.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` (UTF-8) to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON; infinities are written as the strings "inf" and "-inf"."""
    write_text(path, json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Raises:
        BenchError: the file is missing or is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BenchError(f"{path} is missing: run the workflow again to make it") from error
    except ValueError as error:
        raise BenchError(f"{path} is not valid JSON ({error}): delete it and run the workflow again") from error


def sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """JSON has no infinity; readers would silently get an invalid file."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    return value
