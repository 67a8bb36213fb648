"""The privacy cost of choosing hyper-parameters by comparing the runs of a search.

A search whose runs were trained on public data costs the clients nothing. A search
whose runs read the clients' data is a release of its own, whatever the runs are
compared on: the choice among K models depends on all K. The cost depends on how the
number of runs is determined (Papernot and Steinke, Hyperparameter Tuning with Renyi
Differential Privacy, 2022):

- "fixed": K runs, of which the best is taken. The account is that of a composition of
  K: for a fixed K nothing substantially better holds in general.
- "geometric": run, stop with probability 1/K, else run again. The best run is taken,
  and the others are never shown (Theorem 2 with eta = 1).
- "poisson": the number of runs is Poisson of mean K (Theorem 6); with none, nothing is
  published.

The account assumes that all runs of the search are as private as the accounted run, and
that they draw their cohorts, lots and noise independently. Streams are named by seed
and purpose, so that two runs with one seed share them: a client is in the same rounds
of both, and if the runs differ in C alone, the difference of their sums over C has no
noise. So no finite epsilon is proven for a search on private data unless each run has
its own streams (`Run.streams`), named by seed and key. For "geometric" and "poisson",
each run draws its hyper-parameters anew from the candidates. Candidates that are drawn
twice must run with another seed, since a repeated run gives the same numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dploss.renyi import epsilon_of
from dpsum.errors import DpsumError

NUMBERS = ("fixed", "geometric", "poisson")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """A declared search for hyper-parameters.

    Attributes:
        runs: K >= 1, the number of runs, or its mean.
        data: "public" or "private": training data of the compared runs.
        number: "fixed", "geometric" or "poisson": law of the number of runs.
    """

    runs: int
    data: str
    number: str = "fixed"

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise DpsumError(f"tuning: runs is {self.runs}: it must be at least 1")
        if self.data not in ("public", "private"):
            raise DpsumError(f"tuning: data is {self.data!r}: choose public or private")
        if self.number not in NUMBERS:
            raise DpsumError(
                f"tuning: number is {self.number!r}: choose one of {', '.join(NUMBERS)}"
            )

    @classmethod
    def of(cls, values: Mapping[str, Any] | None) -> Search | None:
        """Return the search of a configuration's `tuning` entry; None if it is None."""
        if values is None:
            return None
        return cls(**values)

    @property
    def several(self) -> bool:
        """Whether the search can have had a run besides the accounted one."""
        return self.runs > 1 or self.number != "fixed"

    @property
    def text(self) -> str:
        """Description of the search, for people."""
        if self.number == "fixed":
            return f"a search of {self.runs} runs, all of them counted"
        return f"a search whose number of runs is {self.number} of mean {self.runs}"


def searched_epsilon(
    divergences: np.ndarray, orders: Sequence[float], search: Search, delta: float
) -> float:
    """Return an upper bound on epsilon of a search, by the tighter conversion.

    Args:
        divergences: upper bounds on the Renyi divergence of one of its runs at each
            order, in both directions.
        orders: the orders, above 1.
        search: the search.
        delta: delta at which epsilon is stated.
    """
    alphas = np.asarray(orders, dtype=float)
    runs = search.runs
    chosen_divergences = divergences + math.log(runs) / (alphas - 1)
    if search.number == "fixed":
        total = runs * divergences
    elif search.number == "geometric":
        # The second order is free; at order 1 only its logarithm would be left.
        second = 2 * np.minimum(
            np.min((1 - 1 / alphas) * divergences + math.log(runs) / alphas),
            math.log(runs),
        )
        total = chosen_divergences + second
    else:
        # Pure-epsilon half of the theorem: delta of one run at e^eps = 1 + 1 / (alpha - 1).
        at = np.log1p(1 / (alphas - 1))
        logs = (alphas[None, :] - 1) * (
            divergences[None, :] - at[:, None] + np.log1p(-1 / alphas)
        ) - np.log(alphas)
        least = np.minimum(np.min(logs, axis=1), 0.0)
        total = chosen_divergences + runs * np.exp(least)
    return epsilon_of(total, orders, delta, tight=True)
