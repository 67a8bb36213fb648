"""One pass in secret rounds (Chua et al., Balls-and-Bins Sampling for DP-SGD, 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.participation.participation import Participation
from dpsum import participation

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run


class BallsAndBins(Participation):
    """Each client draws one secret round out of T.

    Still one pass; the cohort's size varies and is private, and the denominator is N/T.
    """

    kind: Literal["balls-and-bins"] = "balls-and-bins"
    planned: ClassVar[type[participation.Participation]] = participation.BallsAndBins
    once: ClassVar[bool] = True
    correlated: ClassVar[bool] = True

    def check(self, run: Run) -> None:
        super().check(run)
        count = run.clients.count
        if self.rounds and count % self.cohort == 0 and self.cohort * self.rounds != count:
            raise BenchError(
                f"participation.cohort x participation.rounds is {self.cohort * self.rounds}, but balls-and-bins needs "
                f"the {count} clients of clients.count exactly: try {count // self.cohort} rounds"
            )
        self.check_divides(run)
