"""Data files of a folder or archive, and the reading of tables among them.

Hidden files, by-products of an operating system and links are not data. A link leads
to a file that is listed elsewhere, so that an image or text would be there twice.
"""

import contextlib
import csv
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from dpfedbench.errors import BenchError

BY_PRODUCTS = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini"})
"""Names of files that systems and viewers leave beside data.

Hidden files, which begin with a dot, are excluded anyway.
"""


def is_by_product(path: str) -> bool:
    """Return whether a path is hidden, a by-product, or leads out of the root.

    Args:
        path: path below a root, with slashes. Resource forks count as by-products.
    """
    parts = [part for part in PurePosixPath(path).parts if part != "."]
    return any(part.startswith(".") or part in BY_PRODUCTS for part in parts)


def data_files(root: Path) -> list[Path]:
    """Return the files below a folder that are data, sorted."""
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and not is_by_product(path.relative_to(root).as_posix())
    )


def folder_of(named: str, local: Path | None) -> Path:
    """Return a folder that is absolute, or relative to the local data folder."""
    return (local or Path()) / Path(named).expanduser()


def class_folders(root: Path) -> list[str]:
    """Return the names of a folder's sub-folders that are data, sorted."""
    return sorted(
        path.name
        for path in root.iterdir()
        if path.is_dir() and not path.is_symlink() and not is_by_product(path.name)
    )


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file as dictionaries by its header.

    The caller has to check the values.
    """
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


@contextlib.contextmanager
def readable_file(path: Path, wrong: str = "is damaged") -> Iterator[Path]:
    """Turn errors of reading a damaged file into one line that names file and remedy.

    Raises:
        BenchError: the file is missing, or its content is `wrong`.
    """
    try:
        yield path
    except FileNotFoundError as error:
        raise BenchError(
            f"{path} is missing: delete {path.parent} and run the workflow again"
        ) from error
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
    ) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise BenchError(
            f"{path} {wrong} ({reason}): delete {path.parent} and run the workflow again"
        ) from error
