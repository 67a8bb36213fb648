"""The format version of a results folder, so that no program misreads the folder of
another version.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.files import read_group, read_json, write_json

FORMAT = "1.0"
"""Raise the first number when a file of a run, or its place, changes so that older code
would read it wrongly; the second one when something is added.
"""
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
    if os.path.lexists(path):
        refuse_other_format(read_group(path), str(results))


def refuse_other_format(mark: Mapping[str, Any], what: str) -> None:
    """Refuse a file or folder whose format has another first number.

    Args:
        mark: has "format", and perhaps "written_by".
        what: the file or folder, for the message.

    Raises:
        BenchError: it is of another format.
    """
    written = str(mark.get("format", FORMAT))
    if written.partition(".")[0] != FORMAT.partition(".")[0]:
        raise BenchError(
            f"{what} has results of format {written}, written by dpfedbench"
            f" {mark.get('written_by', 'of an unknown version')}; this version reads"
            f" format {FORMAT}: move that folder aside, or give another with --directory"
        )


def mark_format(results: str | Path) -> None:
    """Mark a results folder with the format that this version writes."""
    path = Path(results, NAME)
    if not path.exists() or read_json(path).get("format") != FORMAT:
        write_json(path, {"format": FORMAT, "written_by": VERSION})
