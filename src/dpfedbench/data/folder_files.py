"""Data files of a folder or archive, each listed once.

Hidden files and by-products of an operating system are not data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from dpfedbench.errors import BenchError
from dpfedbench.files import reading

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


def check_printable(root: Path, path: str) -> None:
    """Refuse a name that no table or page can print.

    Raises:
        BenchError: the name is not UTF-8, or has control characters.
    """
    if not path.isprintable():
        raise BenchError(
            f"{root} has a file or folder with an unprintable name, {path!a}: rename it"
        )


def data_files(root: Path, *, suffixes: Sequence[str] = ()) -> list[Path]:
    """Return the files below a folder that are data, sorted.

    Hidden files and folders, resource forks and links are left out, and a notice
    reports them. A link leads to a file that is listed elsewhere, to a parent folder,
    or out of the folder. The folder itself may be a link.

    Args:
        root: the folder.
        suffixes: allowed endings of file names, in lower case. Empty: all.

    Raises:
        BenchError: a name cannot be printed, or a folder cannot be read.
    """
    files = list[Path]()
    left_out = list[str]()
    for folder, folders, names in os.walk(root, followlinks=False, onerror=_raise):
        inside = Path(folder).relative_to(root)
        data_folders = []
        for name in sorted([*folders, *names]):
            relative = (inside / name).as_posix()
            path = root / relative
            is_folder = name in folders
            has_suffix = not suffixes or name.lower().endswith(tuple(suffixes))
            if is_by_product(relative) or path.is_symlink():
                if is_folder or has_suffix or path.is_dir():
                    left_out.append(relative)
            elif is_folder:
                check_printable(root, relative)
                data_folders.append(name)
            elif has_suffix and path.is_file():
                check_printable(root, relative)
                files.append(path)
        folders[:] = data_folders
    tell_left_out(root, left_out)
    return sorted(files)


def _raise(error: OSError) -> None:
    with reading(error.filename or ""):
        raise error


def class_folders(root: Path) -> list[str]:
    """Return the names of a folder's sub-folders that are data, sorted.

    As in `data_files`, others are left out and a notice reports them.

    Raises:
        BenchError: a name cannot be printed.
    """
    names = []
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        if entry.is_dir() and not entry.is_symlink() and not is_by_product(entry.name):
            check_printable(root, entry.name)
            names.append(entry.name)
    return names


def tell_left_out(root: Path, left_out: Iterable[str]) -> None:
    """Print a notice of the files that are left out of a folder or archive, if any."""
    names = [ascii(name) if not name.isprintable() else name for name in left_out]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        print(
            f"notice: {root}: left out {', '.join(names[:3])}{more} (hidden files,"
            " system files or links)",
            file=sys.stderr,
            flush=True,
        )
