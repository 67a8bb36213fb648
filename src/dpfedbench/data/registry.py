"""Data sets by name: their origin, and how they are prepared.

`data.DATASETS_TABLE` lists the data sets that come with dpfedbench; the `READERS` of
this package's modules make them. The configuration (`datasets`) may define further
ones: their facts, and a module of this package or of a plugin whose `read` makes them.
"""

import importlib
import pkgutil
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dpfedbench import data
from dpfedbench.data.images import Raw
from dpfedbench.data.readers import reader_modules
from dpfedbench.data.sources import local_folder

Reader = Callable[[Path | None, Path], Raw]
"""Function that makes a data set.

Its arguments are the local data folder or None, and the folder for downloads.
"""


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """Entry of one data set: its facts, and the function that makes it.

    The facts come from `data.DATASETS_TABLE` or from the configuration.
    """

    name: str
    source: str
    licence: str
    read: Reader
    version: str = "1"
    stands_in_for: str | None = None
    recorded_sha256: str | None = None


def _shipped() -> Iterator[DatasetEntry]:
    readers: dict[str, Reader] = {}
    for info in pkgutil.iter_modules(data.__path__, f"{data.__name__}."):
        if info.name != __name__:
            readers |= getattr(importlib.import_module(info.name), "READERS", {})
    for row in data.read_table().values():
        yield DatasetEntry(
            name=row["name"],
            version=row["version"],
            source=row["source"],
            licence=row["licence"],
            read=readers[row["name"]],
            stands_in_for=_stated_or_none(row["stands_in_for"]),
            recorded_sha256=_stated_or_none(row["sha256"]),
        )


def _stated_or_none(cell: str) -> str | None:
    return None if cell == "-" else cell


DATASETS = {entry.name: entry for entry in _shipped()}


def lookup(name: str, own: Mapping[str, Mapping[str, Any]]) -> DatasetEntry:
    """Return the entry of a data set.

    Args:
        name: name of the data set.
        own: the configuration's `datasets`. The plan has checked their readers and
            options.

    """
    if name in DATASETS:
        return DATASETS[name]
    values = own[name]
    module = importlib.import_module(reader_modules()[values["reader"]])
    return DatasetEntry(
        name=name,
        version=str(values.get("version", 1)),
        source=values.get("source", "not stated"),
        licence=values.get("licence", "not stated"),
        read=partial(module.read, **values.get("options", {})),
    )


def prepare(
    name: str,
    out_dir: Path | str,
    local_dir: Path | str | None = None,
    *,
    own: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({}),
) -> None:
    """Write images.npy, classes.csv and summary.json of a data set.

    No file is left half-written.

    Args:
        name: name of the data set.
        out_dir: the data set's folder; downloads are kept in its subfolder `download`.
        local_dir: a folder with real data on this machine. None: the environment
            variable DPFEDBENCH_DATA; if it is not set, data are downloaded.
        own: the configuration's `datasets`, in addition to those of dpfedbench.

    Raises:
        BenchError: there is neither data nor a network, data are damaged, or the folder
            cannot be written to.
    """
    entry = lookup(name, own)
    out_dir = Path(out_dir)
    raw = entry.read(local_folder(local_dir), out_dir / "download")
    facts = {**vars(entry), "stand_in": entry.stands_in_for is not None}
    del facts["read"]
    raw.save(out_dir, facts)
