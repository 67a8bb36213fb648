"""The format version of a results folder, so that no program misreads the folder of
another version.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json, write_json

# Raise it when a file of a run, or its place, changes so that older code would read it
# wrongly.
FORMAT = 4
NAME = "format.json"
# Of dpfedbench; pyproject.toml reads it here, and so can an environment in which the
# package is not installed.
VERSION = "0.1.0"

HISTORY = (
    "round",
    "clients",
    "loss",
    "threshold",
    "released_norm",
    "noise_multiplier",
    "epsilon_claimed",
    "epsilon_proven",
    "validation_accuracy",
    "seconds",
)
"""Columns that every history.csv has."""
GROUP_THRESHOLDS = ("threshold_least", "threshold_most")
"""Those of a run that clips by groups of coordinates; `threshold` is then the norm of
all groups' thresholds together.
"""
NORMS = ("norm_q10", "norm_q50", "norm_q90")
"""Those of a run whose raw norms may be told."""
MEASURED = ("test_accuracy", "test_loss", "validation_loss")
"""Those of what a model may be measured on while it trains."""


def check_format(results: str | Path) -> None:
    """Refuse a results folder that another version wrote. One that does not exist, or
    has no mark, is accepted.

    Raises:
        BenchError: the folder has another format, or its mark is damaged.
    """
    path = Path(results, NAME)
    if not os.path.lexists(path):
        return
    mark = read_json(path)
    refuse_newer(mark, str(results))
    if mark["format"] < FORMAT:
        raise BenchError(
            f"{results} has results of format {mark['format']}; this version reads"
            f" format {FORMAT}: move that folder aside, or give another with"
            " --directory"
        )


def refuse_newer(mark: Mapping[str, Any], what: str) -> None:
    """Refuse what says of itself that it has a newer format: `mark` has "format", and
    perhaps "written_by".
    """
    written = mark.get("format", FORMAT) if isinstance(mark, Mapping) else None
    if not isinstance(written, int):
        raise BenchError(
            f"{what}: its format is {written!r}, not a whole number: delete {NAME}"
            " there if you trust the rest"
        )
    if written > FORMAT:
        raise BenchError(
            f"{what} was written by a newer dpfedbench"
            f" ({mark.get('written_by', 'version unknown')}, results format {written};"
            f" this one reads up to {FORMAT}): update dpfedbench, or give another"
            " folder with --directory"
        )


def mark_format(results: str | Path) -> None:
    """Mark a results folder with the format that this version writes."""
    path = Path(results, NAME)
    if not path.exists() or read_json(path).get("format") != FORMAT:
        write_json(path, {"format": FORMAT, "written_by": VERSION})
