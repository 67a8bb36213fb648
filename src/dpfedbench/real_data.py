"""Real data sets: the files that each needs, and those that a configuration lacks.

The `PLACES` of the modules of `data` state the files.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpfedbench import data
from dpfedbench.data.folder_files import folder_of
from dpfedbench.data.registry import DATASETS
from dpfedbench.data.sources import Source

COLUMNS = (
    "data set",
    "folder, and files in it",
    "examples",
    "archives",
    "licence",
    "checked by",
    "SHA-256 as prepared",
    "source",
)
"""Columns of the table of real data sets."""

_SHOWN_DIGITS = 12  # of a checksum

_NOT_RECORDED = "not recorded"


def read_places() -> dict[str, Source]:
    """Return the files of each real data set that comes with dpfedbench, by name."""
    sources: dict[str, Source] = {}
    for info in pkgutil.iter_modules(data.__path__, f"{data.__name__}."):
        sources |= getattr(importlib.import_module(info.name), "PLACES", {})
    return dict(sorted(sources.items()))


def describe_places() -> Iterator[tuple[str, ...]]:
    """Yield a row of `COLUMNS` for each real data set."""
    examples = data.read_table()
    for name, source in read_places().items():
        entry = DATASETS[name]
        size = _NOT_RECORDED
        if source.copy_bytes is not None:
            size = f"{source.copy_bytes / 1e6:.1f} MB"
        fetched = "; else downloaded" if source.downloaded else ""
        yield (
            name,
            f"{source.folders[0]}/: {'; '.join(map(_describe_names, source.parts.values()))}{fetched}",
            examples[name]["holds"],
            size,
            entry.licence,
            source.check,
            (entry.recorded_sha256 or "")[:_SHOWN_DIGITS] or _NOT_RECORDED,
            entry.source,
        )


def _describe_names(names: Iterable[str]) -> str:
    """Return the possible names of a part; of many folders of classes none."""
    listed = [name for name in names if not re.fullmatch(r"n\d{8}", name)]
    return " or ".join(listed)


def find_missing(
    names: Iterable[str],
    local: Path | None,
    own_options: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[str, bool]]:
    """Yield a line for each missing file, and whether it will be downloaded.

    Args:
        names: the data sets that runs need.
        local: the local data folder; None: there is none.
        own_options: options of the configuration's `datasets`, by name.
    """
    sources = read_places()
    folder = local or Path("FOLDER")
    for name in sorted(set(names)):
        if name in own_options:
            options = own_options[name]
            if "folder" in options and not folder_of(options["folder"], local).is_dir():
                yield (
                    f"{name}: {folder_of(options['folder'], folder)} is missing",
                    False,
                )
        elif name in sources:
            source = sources[name]
            for part in source.missing(local):
                yield (
                    (
                        f"{name}: {_describe_names(source.parts[part])} is missing in"
                        f" {folder / source.folders[0]}"
                        f" (from {DATASETS[name].source})"
                    ),
                    source.downloaded,
                )
