"""Several passes over the clients in blocks, each in a new order: for methods that claim nothing of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.parts.participation.participation import Participation
from dpsum import participation

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run


class Passes(Participation):
    """Blocks of a shuffled list; when it is at its end it is shuffled anew (Li et al. 2020: visits per task).

    There is no analysis for it: of a private sum over it no epsilon is printed.
    """

    kind: Literal["passes"] = "passes"
    planned: ClassVar[type[participation.Participation]] = participation.Passes

    def check(self, run: Run) -> None:
        super().check(run)
        self.check_blocks(run)
