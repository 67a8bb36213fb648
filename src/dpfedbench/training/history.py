"""Reader of history.csv, the rounds of a finished run."""

from pathlib import Path

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.files import reading


def read_history(path: Path) -> pd.DataFrame:
    """Read a run's history.csv, one row for each round.

    Raises:
        BenchError: it is missing, or is not a CSV with a column `round`, or has rows with more
            values than columns.
    """
    try:
        with reading(path):
            history = pd.read_csv(path).astype({"round": int})
    except (ValueError, KeyError) as error:
        raise BenchError(
            f"{path} cannot be read ({error}): delete it and run the workflow again"
        ) from error
    # pandas takes a further value in each row for the row's name, and shifts the others.
    if not isinstance(history.index, pd.RangeIndex):
        raise BenchError(
            f"{path} has rows with more values than columns: delete it and run the"
            " workflow again"
        )
    return history
