"""Several passes over the clients in blocks, each in a new order, for releases that are accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.parts.participation.participation import Participation
from dpsum import participation

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run


class ShuffledEpochs(Participation):
    """Blocks of a shuffled list; when it is at its end it is shuffled anew. A client is in one block of each epoch.

    An observer may know the blocks: a client is in as many Gaussian releases as epochs were begun.
    """

    kind: Literal["shuffled-epochs"] = "shuffled-epochs"
    planned: ClassVar[type[participation.Participation]] = participation.ShuffledEpochs
    known: ClassVar[bool] = True

    def check(self, run: Run) -> None:
        super().check(run)
        self.check_blocks(run)
