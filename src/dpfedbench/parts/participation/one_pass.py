"""One pass over the clients in disjoint blocks (DP-FedMeta, DP-MAML)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.participation.participation import Participation, Plan

if TYPE_CHECKING:
    import numpy as np


class _Blocks(Plan):
    def __init__(self, *, kind: str, clients: int, cohort: int, rounds: int, seed: int) -> None:
        from dpsum.randomness import stream

        super().__init__(kind=kind, clients=clients, cohort=cohort, rounds=rounds, seed=seed)
        if clients % cohort or rounds > clients // cohort:
            raise BenchError(
                f"one-pass participation needs a cohort that divides the clients and at most clients/cohort rounds, "
                f"not {rounds} rounds of {cohort} of {clients}"
            )
        self._order = stream(seed, "participation").permutation(clients)

    def cohort(self, index: int) -> np.ndarray:
        return self._order[index * self.size : (index + 1) * self.size]


class OnePass(Participation):
    """Disjoint blocks of a shuffled list: no client takes part twice (DP-FedMeta's one-pass training).

    An observer may know the blocks: shuffling is not counted upon. Then each client is in one Gaussian release.
    """

    kind: Literal["one-pass"] = "one-pass"
    planned: ClassVar[type[Plan]] = _Blocks
    once: ClassVar[bool] = True
    known: ClassVar[bool] = True

    def check(self, run: Any) -> None:
        super().check(run)
        self.check_divides(run)
