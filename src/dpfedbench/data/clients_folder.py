"""Folder of a client partition: clients.npz and summary.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from dpfedbench.data.folder_files import readable_file
from dpfedbench.errors import BenchError
from dpfedbench.files import (
    atomic_path,
    read_json,
    sha256,
    write_json,
)
from dpfedbench.lazy import np


@dataclass(frozen=True, kw_only=True)
class ClientsFolder:
    """Base of the partitions: arrays with one row per client.

    Attributes:
        summary: dataset, kind, seed and counts of the partition.
    """

    arrays: ClassVar[tuple[str, ...]]
    """Names of the attributes that clients.npz holds."""
    optional_arrays: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that clients.npz holds unless they are None."""

    summary: dict[str, Any]

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(getattr(self, self.arrays[0]))

    def save(self, folder: Path | str) -> None:
        """Write clients.npz, and then summary.json.

        Each file is written completely or not at all.

        Args:
            folder: output folder, created if missing.

        Raises:
            BenchError: the folder cannot be written to.
        """
        folder = Path(folder)
        names = (*self.arrays, *self.optional_arrays)
        arrays = {name: getattr(self, name) for name in names}
        stored = {name: array for name, array in arrays.items() if array is not None}
        with (
            atomic_path(folder / "clients.npz") as temporary,
            open(temporary, "wb") as handle,
        ):
            np.savez(handle, **stored)  # type: ignore[arg-type]
        write_json(
            folder / "summary.json",
            {**self.summary, "clients_sha256": sha256(folder / "clients.npz")},
        )

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read a saved partition, and check its files against each other.

        Raises:
            BenchError: a file is missing or damaged, or holds another kind of
                partition.
        """
        folder = Path(folder)
        summary = read_json(folder / "summary.json")
        with readable_file(folder / "clients.npz") as path:
            if sha256(path) != summary["clients_sha256"]:
                raise ValueError("its content differs from its summary")
            with np.load(path, allow_pickle=False) as file:
                optional = [name for name in cls.optional_arrays if name in file]
                names = (*cls.arrays, *optional)
                return cls(summary=summary, **{name: file[name] for name in names})


def of_training(dataset: Any, *, kind: str, seed: int, clients: int) -> dict[str, Any]:
    """Return the first entries of every partition's summary.

    They name the data set whose training part is partitioned, and how clients were
    drawn.
    """
    return {
        "dataset": dataset.name,
        "dataset_sha256": dataset.summary["sha256"],
        "split": "train",
        "kind": kind,
        "seed": seed,
        "clients": clients,
    }


def check_made_for(
    name: str, dataset: Mapping[str, Any], clients: Mapping[str, Any]
) -> None:
    """Refuse clients that were made for other images.

    Args:
        name: name of the data set.
        dataset, clients: summaries of the data set and of the clients.

    Raises:
        BenchError: the clients were made for other images.
    """
    if clients["dataset_sha256"] != dataset["sha256"]:
        raise BenchError(
            "the clients' folder was made for other images (of"
            f" {clients['dataset']}), not for these of {name}: delete the clients'"
            " folder and run the workflow again"
        )
