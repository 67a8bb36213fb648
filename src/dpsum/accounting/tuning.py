"""The cost of having chosen hyper-parameters by looking at the runs of a search.

A search whose runs were trained on public data costs the clients nothing. One whose
runs read the clients' data is a release of its own, whatever they are compared on:
which of K models is published follows from all K. What it costs depends on how the
number of runs came about (Papernot and Steinke, Hyperparameter Tuning with Renyi
Differential Privacy, 2022):

- "fixed": K runs and the best is taken. All of them together are a composition of K,
  and that is what is given: for a fixed K nothing substantially better holds in
  general.
- "geometric": run, stop with probability 1/K, else run again; the best is taken, the
  others are never shown (Theorem 2 with eta = 1).
- "poisson": the number of runs is Poisson of mean K (Theorem 6); with none, nothing is
  published.

Runs of the search are taken to be as private as the run that is accounted for, and to
draw their cohorts, lots and noise apart from one another. Streams are named by the seed
and what they are for, so two runs of one seed share them: a client is in the same
rounds of both, and of two runs that differ in C alone the difference of the sums over C
has no noise at all. So nothing finite is proven for a search on private data unless each
run's streams are its own (`Run.streams`), named by seed and key. For the second and
third each run draws its hyper-parameters anew from the candidates; one that is drawn
twice has to be run with another seed, since the same run again is the same numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpsum.accounting.renyi import epsilon_of
from dpsum.errors import DpsumError

NUMBERS = ("fixed", "geometric", "poisson")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """A declared search for hyper-parameters.

    Attributes:
        runs: K >= 1, how many runs there were, or their mean number.
        data: "public" or "private": what the runs that were compared were trained on.
        number: "fixed", "geometric" or "poisson": how the number of runs came about.
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
        """The search of an entry of the configuration's `tuning`; None for none."""
        if values is None:
            return None
        return cls(**values)

    @property
    def several(self) -> bool:
        """Whether there can have been another run beside the one that is accounted
        for.
        """
        return self.runs > 1 or self.number != "fixed"

    @property
    def text(self) -> str:
        """For people: what was searched."""
        if self.number == "fixed":
            return f"a search of {self.runs} runs, all of them counted"
        return f"a search whose number of runs is {self.number} of mean {self.runs}"


def searched_divergences(
    divergences: np.ndarray, orders: Sequence[float], search: Search
) -> np.ndarray:
    """Renyi divergences of a search, from an upper end for one of its runs at each
    order > 1, in both directions.
    """
    alphas = np.asarray(orders, dtype=float)
    runs = search.runs
    if search.number == "fixed":
        return np.asarray(runs * divergences)
    chosen_divergences = divergences + math.log(runs) / (alphas - 1)
    if search.number == "geometric":
        # The second order is free; at order 1 only its logarithm would be left.
        second = 2 * np.minimum(
            np.min((1 - 1 / alphas) * divergences + math.log(runs) / alphas),
            math.log(runs),
        )
        return np.asarray(chosen_divergences + second)
    # Pure-epsilon half of the theorem: delta of one run at e^eps = 1 + 1 / (alpha - 1).
    at = np.log1p(1 / (alphas - 1))
    logs = (alphas[None, :] - 1) * (
        divergences[None, :] - at[:, None] + np.log1p(-1 / alphas)
    ) - np.log(alphas)
    return np.asarray(
        chosen_divergences + runs * np.exp(np.minimum(np.min(logs, axis=1), 0.0))
    )


def searched_epsilon(
    divergences: np.ndarray, orders: Sequence[float], search: Search, delta: float
) -> float:
    """An upper end of epsilon of a search, by the tighter conversion; arguments as
    above.
    """
    return epsilon_of(
        searched_divergences(divergences, orders, search), orders, delta, tight=True
    )
