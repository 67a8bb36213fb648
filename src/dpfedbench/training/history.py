"""Rows of history.csv, one for each round, and its reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedbench.errors import BenchError
from dpfedbench.files import reading
from dpfedbench.lazy import np
from dpfedbench.results_format import GROUP_THRESHOLDS, NORMS

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from dpfedbench.run import Run
    from dpsum.mechanism import Accumulator, Mechanism

Row = dict[str, Any]
"""A row of history.csv."""


def server_columns(server: Mechanism, unit: str, *, is_private: bool) -> list[str]:
    """Return the columns that `server_row` fills in addition to the common ones.

    Args:
        server: mechanism of the server's sum.
        unit: unit of the clients' work, "clients" or "records".
        is_private: whether the run claims privacy.
    """
    columns = list[str]()
    if server.spec.noise is not None:
        columns += server.spec.noise.public_columns
    if server.groups is not None:
        columns += GROUP_THRESHOLDS
    if not is_private and unit != "records":
        columns += NORMS
    return columns


def server_row(
    run: Run,
    total: Accumulator,
    released: torch.Tensor,
    clients: float,
    losses: Sequence[np.ndarray],
) -> Row:
    """Return a round's row of the history, from the server's sum.

    Of a private run, it has only what follows from releases.

    Args:
        run: the run.
        total: the server's sum, after its release.
        released: the release [d].
        clients: number of clients: of a private run the expected one.
        losses: losses of the cohort.
    """
    norm = float(released.norm())
    if total.spec.private:
        thresholds = {}
        if total.sum.groups is not None:
            ends = min(total.sum.thresholds), max(total.sum.thresholds)
            thresholds = dict(zip(GROUP_THRESHOLDS, ends, strict=True))
        return {
            "clients": clients,
            "threshold": total.sum.threshold,
            "released_norm": norm,
            "noise_multiplier": total.sum.noise_multiplier,
            **total.sum.public_values,
            **thresholds,
        }
    if run.private:
        # Each contribution is a client's own release, so that the norm of the sum may
        # be published; losses may not.
        return {"clients": clients, "released_norm": norm}
    quantiles = np.quantile(total.norms or [np.nan], [0.1, 0.5, 0.9])
    return {
        "clients": clients,
        "loss": float(np.mean(np.concatenate(losses))) if losses else np.nan,
        **dict(zip(NORMS, quantiles.tolist(), strict=True)),
        "released_norm": norm,
    }


def read_history(path: Path) -> pd.DataFrame:
    """Read a run's history.csv, one row for each round.

    Raises:
        BenchError: it is missing, or is not a CSV with a column `round`, or has rows with more
            values than columns.
    """
    import pandas as pd  # slow to import, and no training needs it

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
