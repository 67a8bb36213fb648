"""The folder of a client partition: clients.npz, preview.csv for people,
summary.json.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from dpfedbench.errors import BenchError
from dpfedbench.files import (
    atomic_path,
    defused,
    read_json,
    sha256,
    write_json,
    write_table,
)
from dpfedbench.lazy import np

PREVIEW = 20
"""Clients that the preview shows."""


@dataclass(frozen=True, kw_only=True)
class ClientsFolder:
    """Base of the partitions: what each client holds, by arrays with a row a client.

    Attributes:
        summary: what it is: dataset, kind, seed, counts.
        class_names: of the data set's classes, for the preview; empty once loaded from
            a folder.
    """

    arrays: ClassVar[tuple[str, ...]]
    """The attributes that clients.npz holds."""
    optional_arrays: ClassVar[tuple[str, ...]] = ()
    """Attributes that clients.npz holds unless they are None."""

    summary: dict[str, Any]
    class_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(getattr(self, self.arrays[0]))

    def preview(self) -> list[list[Any]]:
        """The rows of preview.csv, its head first."""
        raise NotImplementedError

    def called(self, index: int) -> str:
        """The name of a class, where it is known."""
        return self.class_names[index] if self.class_names else ""

    def save(self, folder: Path | str) -> None:
        """Write clients.npz, the first clients as preview.csv for people, and
        summary.json; each whole or not at all.

        Args:
            folder: made if missing.

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
        write_table(
            folder / "preview.csv",
            ([defused(cell) for cell in row] for row in self.preview()),
        )
        write_json(
            folder / "summary.json",
            {**self.summary, "clients_sha256": sha256(folder / "clients.npz")},
        )

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read what `save` wrote, checking one file against the other.

        Raises:
            BenchError: a file is missing or damaged, or holds no such partition.
        """
        folder = Path(folder)
        mend = f"delete {folder} and run the workflow again"
        summary = read_json(folder / "summary.json")
        path = folder / "clients.npz"
        try:
            if sha256(path) != summary["clients_sha256"]:
                raise ValueError("its content is not what its summary says")
            with np.load(path, allow_pickle=False) as file:
                optional = [name for name in cls.optional_arrays if name in file]
                names = (*cls.arrays, *optional)
                return cls(summary=summary, **{name: file[name] for name in names})
        except FileNotFoundError as error:
            raise BenchError(f"{path} is missing: {mend}") from error
        except (
            KeyError,
            TypeError,
            ValueError,
            OSError,
            EOFError,
            zipfile.BadZipFile,
        ) as error:
            raise BenchError(f"{path} is damaged ({error}): {mend}") from error


def of_training(dataset: Any, *, kind: str, seed: int, clients: int) -> dict[str, Any]:
    """Return the first entries of every summary: the data set whose training part it is
    of, and how the clients were drawn.
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
        name: of the data set.
        dataset, clients: the summaries of both.

    Raises:
        BenchError: they were.
    """
    if clients["dataset_sha256"] != dataset["sha256"]:
        raise BenchError(
            f"the clients were made for other images (of {clients['dataset']}) than"
            f" these of {name}: delete the clients' folder and run the workflow again"
        )
