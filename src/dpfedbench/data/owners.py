"""Owners of records: the people or devices that a data set's examples come from.

A data set whose reader knows owners has a file owners.csv. It lists the owners of the
examples in the order of images.npy; consecutive examples of one owner are one row.
`parts.partitions.natural` makes a client of each owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfedbench.data.folder_files import read_table, readable_file
from dpfedbench.errors import BenchError
from dpfedbench.files import sha256
from dpfedbench.lazy import np

FILE = "owners"
"""Name of the table, without its suffix."""
TEST_SHARE = 0.1
"""Share of each owner's examples that are test records, where the data do not say."""


@dataclass(frozen=True, kw_only=True)
class Owners:
    """Owner of each example of a data set.

    Attributes:
        names: names of the owners, sorted.
        of_example: int64, indices into `names`, in the shape of the data set's
            examples: [records], or [classes, examples per class].
    """

    names: tuple[str, ...]
    of_example: np.ndarray

    def counts(self, examples: np.ndarray) -> np.ndarray:
        """Return how many of these examples each owner has, int64 [owners].

        Args:
            examples: indices into the first axis of `of_example`.
        """
        owners = self.of_example[examples].ravel()
        return np.bincount(owners, minlength=len(self.names))


def owner_table(owners: np.ndarray) -> list[tuple[Any, ...]]:
    """Return the rows of owners.csv, starting with its header.

    Args:
        owners: text, names of the owners in the order of images.npy.
    """
    flat = owners.ravel()
    starts = np.flatnonzero(np.r_[True, flat[1:] != flat[:-1]])
    lengths = np.diff(np.r_[starts, len(flat)])
    rows = zip(flat[starts].tolist(), lengths.tolist(), strict=True)
    return [("owner", "examples"), *rows]


def read_owners(
    folder: Path, summary: dict[str, Any], shape: Sequence[int]
) -> Owners | None:
    """Return the owners of a prepared data set; None if it knows none.

    Args:
        folder: folder of the data set.
        summary: content of its summary.json.
        shape: shape of its examples.

    Raises:
        BenchError: the file is missing or was changed.
    """
    digest = summary.get(f"{FILE}_sha256")
    if digest is None:
        return None
    with readable_file(folder / f"{FILE}.csv") as path:
        if sha256(path) != digest:
            raise ValueError("its content differs from its summary")
        rows = read_table(path)
        names = np.array([row["owner"] for row in rows])
        lengths = [int(row["examples"]) for row in rows]
        sorted_names, numbers = np.unique(names, return_inverse=True)
        of_example = np.repeat(numbers, lengths).reshape(shape)
    return Owners(names=tuple(sorted_names.tolist()), of_example=of_example)


def check_owners(owners: np.ndarray | None, shape: Sequence[int], what: str) -> None:
    """Check a reader's owners; an error here is a bug of the reader."""
    if owners is None:
        return
    if owners.shape != tuple(shape) or owners.dtype.kind != "U":
        raise ValueError(
            f"{what} must be text {tuple(shape)}, not {owners.dtype} {owners.shape}"
        )


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse an owner without a name.

    Args:
        names: names of the owners.
        where: name of their file or folder, for the message.

    Raises:
        BenchError: a name is empty.
    """
    if not all(name.strip() for name in names):
        raise BenchError(f"{where}: an owner has no name: give each owner a name")


def count_held_out(count: int, share: float = TEST_SHARE) -> int:
    """Return how many of one owner's examples are left out of training.

    An owner of two examples or more keeps at least one for training and one for the
    test. An owner of one example keeps it for training.
    """
    return min(max(1, round(share * count)), count - 1)
