"""One pass over the clients in disjoint blocks (DP-FedMeta, DP-MAML)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.parts.participation.participation import Participation
from dpsum import participation

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run


class OnePass(Participation):
    """Disjoint blocks of a shuffled list: no client takes part twice (DP-FedMeta's one-pass training).

    An observer may know the blocks: shuffling is not counted upon. Then each client is in one Gaussian release.
    """

    kind: Literal["one-pass"] = "one-pass"
    planned: ClassVar[type[participation.Participation]] = participation.OnePass
    once: ClassVar[bool] = True
    known: ClassVar[bool] = True
    correlated: ClassVar[bool] = True

    def check(self, run: Run) -> None:
        super().check(run)
        self.check_divides(run)
