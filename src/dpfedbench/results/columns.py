"""The columns of `runs.parquet` and `cells.parquet`, read from the data dictionary
`columns.csv`.

`docs/results-format.md` is made from it. Its column `source` says where a value stands
in a run's training.json, privacy.json or audit.json. Every configuration value is a
further column of `runs.parquet`, named by its path, such as `noise.multiplier`.
"""

import functools
from pathlib import Path

import pandas as pd

DICTIONARY = pd.read_csv(Path(__file__).with_suffix(".csv"), keep_default_na=False)
"""A row for each column, with its `group`: `identity`, `test`, `personal`, `training`,
`privacy` or `cells`.

`privacy` is that of the run's first unit. Where a run protects a second unit, or the
same from another observer, the same columns stand again with a prefix.
"""
UNIT_PREFIXES = ("", "second_", "third_")


@functools.cache
def names(group: str) -> list[str]:
    """Return the names of a group of columns."""
    return DICTIONARY.loc[DICTIONARY["group"] == group, "name"].tolist()


@functools.cache
def sources(group: str) -> dict[str, str]:
    """Return where the values of a group of columns stand in JSON files."""
    columns = DICTIONARY[(DICTIONARY["group"] == group) & (DICTIONARY["source"] != "")]
    return dict(zip(columns["name"], columns["source"], strict=True))


@functools.cache
def run_columns() -> list[str]:
    """Return the names of all columns of `runs.parquet` but those of the
    configuration, in order.
    """
    privacy = [
        f"{prefix}{name}" for prefix in UNIT_PREFIXES for name in names("privacy")
    ]
    return [
        *names("identity"),
        *names("test"),
        *names("personal"),
        *privacy,
        *names("training"),
    ]
