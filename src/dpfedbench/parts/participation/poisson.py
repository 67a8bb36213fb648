"""Poisson cohorts: in each round each client takes part with the same chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.parts.participation.participation import Participation, Plan

if TYPE_CHECKING:
    import numpy as np


class _Cohorts(Plan):
    def cohort(self, index: int) -> np.ndarray:
        import numpy as np

        from dpsum.randomness import stream

        drawn = stream(self.seed, "participation", index).random(self.clients)
        return np.flatnonzero(drawn < self.size / self.clients)


class Poisson(Participation):
    """In each round each client takes part with probability L/N, apart from all others."""

    kind: Literal["poisson"] = "poisson"
    planned: ClassVar[type[Plan]] = _Cohorts
