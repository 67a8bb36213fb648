"""The columns of `runs.parquet` and `cells.parquet`, read from the data dictionary
`columns.csv`.

`docs/results-format.md` is made from it. Every configuration value is a further column
of `runs.parquet`, named by its path, such as `noise.multiplier`.
"""

import csv
from pathlib import Path
from typing import NamedTuple


class Column(NamedTuple):
    """One column of a frame: its name, the type of its values, and what they mean."""

    name: str
    type: str
    meaning: str


def _read_dictionary() -> dict[str, list[Column]]:
    groups: dict[str, list[Column]] = {}
    path = Path(__file__).with_suffix(".csv")
    with path.open(newline="", encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            group = groups.setdefault(row.pop("group"), [])
            group.append(Column(**row))
    return groups


_GROUPS = _read_dictionary()
IDENTITY = _GROUPS["identity"]
"""Which run a row is of. They come first in `runs.parquet`."""
TEST = _GROUPS["test"]
PERSONAL = _GROUPS["personal"]
"""Tests of clients' own models: the simulation's numbers, which no server sees."""
TRAINING = _GROUPS["training"]
PRIVACY = _GROUPS["privacy"]
"""Privacy of the run's first unit. Where a run protects a second unit, or the same from
another observer, the same columns stand again with a prefix before their names.
"""
CELLS = _GROUPS["cells"]
UNIT_PREFIXES = ("", "second_", "third_")


def names(columns: list[Column]) -> list[str]:
    """Return the names of some columns."""
    return [column.name for column in columns]


def run_columns() -> list[str]:
    """Return the names of all columns of `runs.parquet` but those of the
    configuration, in order.
    """
    further = [
        f"{prefix}{name}" for prefix in UNIT_PREFIXES[1:] for name in names(PRIVACY)
    ]
    tested = [*names(TEST), *names(PERSONAL)]
    return [*names(IDENTITY), *tested, *names(PRIVACY), *further, *names(TRAINING)]
