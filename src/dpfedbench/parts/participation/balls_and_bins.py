"""One pass in secret rounds (Chua et al., Balls-and-Bins Sampling for DP-SGD, 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.participation.participation import Participation, Plan

if TYPE_CHECKING:
    import numpy as np


class _SecretRounds(Plan):
    def __init__(self, *, kind: str, clients: int, cohort: int, rounds: int, seed: int) -> None:
        from dpsum.randomness import stream

        super().__init__(kind=kind, clients=clients, cohort=cohort, rounds=rounds, seed=seed)
        if cohort * rounds != clients:
            raise BenchError(
                f"balls-and-bins participation needs cohort x rounds = clients, not {cohort} x {rounds} and {clients}"
            )
        self._drawn = stream(seed, "participation").integers(rounds, size=clients)

    def cohort(self, index: int) -> np.ndarray:
        import numpy as np

        return np.flatnonzero(self._drawn == index)

    @property
    def denominator(self) -> float:
        return self.clients / self.rounds


class BallsAndBins(Participation):
    """Each client draws one secret round out of T.

    Still one pass; the cohort's size varies and is private, and the denominator is N/T.
    """

    kind: Literal["balls-and-bins"] = "balls-and-bins"
    planned: ClassVar[type[Plan]] = _SecretRounds
    once: ClassVar[bool] = True

    def check(self, run: Any) -> None:
        super().check(run)
        count = run.clients.count
        if self.rounds and count % self.cohort == 0 and self.cohort * self.rounds != count:
            raise BenchError(
                f"participation.cohort x participation.rounds is {self.cohort * self.rounds}, but balls-and-bins needs "
                f"the {count} clients of clients.count exactly: try {count // self.cohort} rounds"
            )
        self.check_divides(run)
