"""The folder of a client partition: clients.npz, preview.csv for people, summary.json."""

import csv
import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, defused, read_json, sha256, write_json, write_text

_Built = TypeVar("_Built")

PREVIEW = 20
"""Clients that the preview shows."""


def save_clients(
    folder: Path, arrays: Mapping[str, np.ndarray], preview: Sequence[Sequence[Any]], summary: Mapping[str, Any]
) -> None:
    """Write the three files, each whole or not at all.

    Args:
        folder: made if missing.
        arrays: what clients.npz holds, by name.
        preview: the rows of preview.csv, its head first.
        summary: what summary.json says, besides the checksum of clients.npz.

    Raises:
        BenchError: the folder cannot be written to.
    """
    with atomic_path(folder / "clients.npz") as temporary, open(temporary, "wb") as handle:
        np.savez(handle, **arrays)  # type: ignore[arg-type]
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([defused(cell) for cell in row] for row in preview)
    write_text(folder / "preview.csv", table.getvalue())
    write_json(folder / "summary.json", {**summary, "clients_sha256": sha256(folder / "clients.npz")})


def load_clients(folder: Path | str, build: Callable[[Mapping[str, np.ndarray], dict[str, Any]], _Built]) -> _Built:
    """Read what `save_clients` wrote, checking one file against the other.

    Args:
        folder: where it is.
        build: makes the partition of the arrays and the summary.

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
        with np.load(path, allow_pickle=False) as arrays:
            return build(arrays, summary)
    except FileNotFoundError as error:
        raise BenchError(f"{path} is missing: {mend}") from error
    except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise BenchError(f"{path} is damaged ({error}): {mend}") from error


def check_made_for(name: str, dataset: Mapping[str, Any], clients: Mapping[str, Any]) -> None:
    """Refuse clients that were made for other images.

    Args:
        name: of the data set.
        dataset, clients: the summaries of both.

    Raises:
        BenchError: they were.
    """
    if clients["dataset_sha256"] != dataset["sha256"]:
        raise BenchError(
            f"the clients were made for other images (of {clients['dataset']}) than these of "
            f"{name}: delete the clients' folder and run the workflow again"
        )
