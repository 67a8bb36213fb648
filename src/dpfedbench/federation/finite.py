"""Where a training has left the range of numbers, and there is nothing left to train."""

from collections.abc import Mapping
from typing import Any

import torch

from dpfedbench.errors import BenchError
from dpfedbench.method import Method


def check_finite(run: Method, theta: torch.Tensor, row: Mapping[str, Any], *, index: int, count: int, bad: int) -> None:
    """Stop a training whose model is not finite, or whose contributions in a round were not, all of them.

    Of a private run only the model is looked at: how many of its contributions were finite is no release.

    Args:
        run: the run (a method).
        theta: the model's weights after the round [d].
        row: the round's row of the history.
        index: of the round, from 0.
        count: contributions to the server's sum.
        bad: those that were not finite, of the server's sum and the clients' own.

    Raises:
        BenchError: says what to lower.
    """
    loss, what = row.get("loss", 0.0), ""
    # Clients that sum over their own records have a loss that leaves out what is not finite, unless all is.
    if not run.private and bad and (bad == count or (run.client_data == "records" and loss != loss)):
        what = "none of its contributions is"
    elif not torch.isfinite(theta).all():
        what = "the model is no longer"
    if what:
        raise BenchError(
            f"training stops in round {index + 1}, since {what} finite: lower server.rate or "
            "client_update.inner_rate, and of a private run clipping.threshold or noise.multiplier"
        )
