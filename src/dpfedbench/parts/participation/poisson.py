"""Poisson cohorts: in each round each client takes part with the same chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.parts.participation.participation import Participation, Plan

if TYPE_CHECKING:
    import numpy as np


class Poisson(Participation):
    """In each round each client takes part with probability L/N, apart from all others."""

    kind: Literal["poisson"] = "poisson"

    def plan(self, *, clients: int, seed: int) -> Plan:
        return _Cohorts(kind=self.kind, clients=clients, cohort=self.cohort, rounds=self.rounds, seed=seed)


class _Cohorts(Plan):
    def cohort(self, index: int) -> np.ndarray:
        import numpy as np

        from dpfedbench.randomness import stream

        drawn = stream(self.seed, "participation", index).random(self.clients)
        return np.flatnonzero(drawn < self.size / self.clients)
