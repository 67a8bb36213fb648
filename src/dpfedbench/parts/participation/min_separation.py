"""Several passes over the clients in blocks, each in the same order: a client's rounds lie apart (b-min-sep)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.parts.participation.participation import Participation
from dpsum import participation

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run


class MinSeparation(Participation):
    """Blocks of a list that was shuffled once, gone through again and again: a client comes each N/L rounds.

    An observer may know the blocks. A client's rounds lie apart, so that correlated noise is accounted for over all.
    """

    kind: Literal["min-separation"] = "min-separation"
    planned: ClassVar[type[participation.Participation]] = participation.RepeatedPasses
    known: ClassVar[bool] = True
    correlated: ClassVar[bool] = True

    def apart(self, clients: int) -> tuple[int, int]:
        separation = max(clients // self.cohort, 1)
        return separation, max(-(-self.rounds // separation), 1)

    def check(self, run: Run) -> None:
        super().check(run)
        self.check_blocks(run)
