"""Several passes over the clients in blocks, each in a new order: for methods that claim nothing of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.participation.participation import Participation, Plan

if TYPE_CHECKING:
    import numpy as np


class _Passes(Plan):
    def cohort(self, index: int) -> np.ndarray:
        from dpsum.randomness import stream

        number, block = divmod(index, self.clients // self.size)
        order = stream(self.seed, "participation", number).permutation(self.clients)
        return order[block * self.size : (block + 1) * self.size]


class Passes(Participation):
    """Blocks of a shuffled list; when it is at its end it is shuffled anew (Li et al. 2020: visits per task).

    There is no analysis for it: of a private sum over it no epsilon is printed.
    """

    kind: Literal["passes"] = "passes"
    planned: ClassVar[type[Plan]] = _Passes

    def check(self, run: Any) -> None:
        super().check(run)
        if run.clients.count % self.cohort:
            raise BenchError(
                f"participation.cohort ({self.cohort}) does not divide clients.count ({run.clients.count}), as passes "
                "need: change one of them"
            )
