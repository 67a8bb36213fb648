"""Atomic writing and safe reading of files.

A file is written under a temporary name and then renamed, so that it is complete or
absent.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedbench.errors import BenchError
from dpsum.files import writing

if TYPE_CHECKING:
    import pandas as pd

_HOST = platform.node().replace("/", "-") or "here"

written: set[Path] = set()
"""Files that this process has written."""


def _mode() -> int:
    """Return the permissions of a new file under this process's umask.

    The umask can be read only by setting it for a moment.
    """
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


_MODE = _mode()


RUN_AGAIN = "delete it and run the workflow again"
"""What to do about a damaged file that the workflow makes."""


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], *, remedy: str = RUN_AGAIN) -> Iterator[None]:
    """Convert errors of reading a file or folder to one line that names it.

    Args:
        path: the file or folder.
        remedy: what to do about a file that is not UTF-8. The default is for files that
            the workflow makes.

    Raises:
        BenchError: the path is missing, not a file, not readable, or not UTF-8 where
            text is read.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise BenchError(
            f"{path} is missing: run the workflow again to make it"
        ) from error
    except OSError as error:
        raise BenchError(
            f"{path} cannot be read ({error.strerror or error}): make it readable, or"
            " move it away and run the workflow again"
        ) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BenchError(
            f"{path} is not UTF-8 text (line {line}, {error.reason}): {remedy}"
        ) from error


def text_of(path: str | os.PathLike[str], *, remedy: str = RUN_AGAIN) -> str:
    """Return the content of a text file, without a byte order mark.

    Args:
        path: the file.
        remedy: as of `reading`.

    Raises:
        BenchError: as `reading`.
    """
    with reading(path, remedy=remedy):
        return Path(path).read_bytes().decode("utf-8-sig")


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success, flush the file and rename it.

    After an error the temporary file is removed. A killed process leaves its temporary
    file behind; the next process that writes the same file removes it.

    Raises:
        BenchError: the folder cannot be made or written to, or the disk is full.
    """
    final = Path(path)
    temporary = final.with_name(
        f".{final.name}.{_HOST}.{os.getpid()}.part{final.suffix}"
    )
    try:
        with writing(final, temporary):
            final.parent.mkdir(parents=True, exist_ok=True)
            _sweep(final)
            yield temporary
            with open(temporary, "rb") as handle:
                os.fchmod(
                    handle.fileno(), _MODE
                )  # safetensors and tempfile create files for their owner alone
                os.fsync(handle.fileno())
            os.replace(temporary, final)
            written.add(final)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sweep(final: Path) -> None:
    """Remove temporary files of `final` of dead processes of this machine."""
    import psutil  # slow to import, and no plan needs it

    start = f".{final.name}.{_HOST}."
    end = f".part{final.suffix}"
    for path in final.parent.iterdir():
        if path.name.startswith(start) and path.name.endswith(end):
            number = path.name[len(start) : -len(end)]
            if number.isdigit() and not psutil.pid_exists(int(number)):
                path.unlink(missing_ok=True)


def write_table(path: str | os.PathLike[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows as CSV, the header first, atomically."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def read_csv(
    path: str | os.PathLike[str],
    columns: Sequence[str],
    *,
    numbers: Sequence[str] = (),
    remedy: str = RUN_AGAIN,
) -> pd.DataFrame:
    """Read columns of a CSV file; text stays as it is.

    pandas' own reader takes "None", "NA" and "nan" for missing values, and 007 for 7.

    Args:
        path: the file, UTF-8 with or without a byte order mark.
        columns: the names of the columns.
        numbers: those of them that hold numbers; see `convert_numbers`. Cells that are
            missing at the end of a row are empty.
        remedy: end of the messages.

    Raises:
        BenchError: the file is missing, not UTF-8 or not CSV, lacks a column or has it
            twice, has a row with more values than columns, or a text where a number is
            expected.
    """
    import pandas as pd  # slow to import, and no plan needs it

    text = text_of(path, remedy=remedy)
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header, *rows = [row for row in lines if row] or [[]]
    except csv.Error as error:
        raise BenchError(
            f"{path}, line {lines.line_num} is not CSV ({error}): {remedy}"
        ) from error
    for name in columns:
        if header.count(name) != 1:
            raise BenchError(
                f"{path} has {header.count(name)} columns {name}, not one (the first"
                f" line has the names, separated by commas): {remedy}"
            )
    for row in rows:
        if len(row) > len(header):
            raise BenchError(
                f"{path}: the row {','.join(row)[:60]} has {len(row)} values, but there"
                f" are {len(header)} columns: {remedy}"
            )
        row += [""] * (len(header) - len(row))
    table = pd.DataFrame(rows, columns=header, dtype=object)[list(columns)]
    return convert_numbers(table, numbers, f"{path}", remedy=remedy)


def convert_numbers(
    table: pd.DataFrame, numbers: Sequence[str], where: str, *, remedy: str = RUN_AGAIN
) -> pd.DataFrame:
    """Return a table whose columns `numbers` are numbers; an empty cell is NaN.

    Args:
        table: a table of text.
        numbers: names of columns.
        where: the file, for the message.
        remedy: end of the message.

    Raises:
        BenchError: a text is no number.
    """
    import pandas as pd  # slow to import, and no plan needs it

    converted = {}
    for name in numbers:
        try:
            converted[name] = pd.to_numeric(table[name])
        except ValueError as error:
            raise BenchError(f"{where}, column {name}: {error}: {remedy}") from error
    return table.assign(**converted)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` (UTF-8) to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically.

    Infinities are written as the strings "inf" and "-inf".
    """
    write_text(path, json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; infinities are strings there, as `write_json` writes them.

    Raises:
        BenchError: the file is missing, cannot be read or is not JSON.
    """
    text = text_of(path)
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise BenchError(
            f"{path} is not valid JSON ({error}): delete it and run the workflow again"
        ) from error


def read_group(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        BenchError: as `read_json`, or the file holds something else.
    """
    group = read_json(path)
    if not isinstance(group, dict):
        raise BenchError(
            f"{path} is not a JSON object: delete it and run the workflow again"
        )
    return group


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is not a number")
    return value


def defused(value: Any) -> Any:
    """Return a CSV cell that no spreadsheet takes for a formula.

    A text that begins like a formula gets an apostrophe before it. Texts that are
    numbers stay as they are, so that pandas reads them as numbers. A line break becomes
    a space.
    """
    if not isinstance(value, str):
        return value
    value = re.sub(r"[\r\n]+", " ", value)
    if not value.startswith(("=", "+", "-", "@", "\t")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal.

    Raises:
        OSError: the path cannot be read, or is not a file.
    """
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _plain(value: Any) -> Any:
    """Return the value in JSON's types, with infinities as strings.

    JSON has no infinity; `json.dumps` would write an invalid file without an error.
    """
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    return str(value) if isinstance(value, float) and math.isinf(value) else value
