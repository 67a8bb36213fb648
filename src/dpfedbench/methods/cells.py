"""Training of a network of known cells, not private: DP-FNAS' augmentation (Singh et al. 2020, Section 4).

The cells that a search found make a larger network, which is trained from scratch on all training records, and tested.
As the paper has it the records are then used without privacy, whatever the search was: nothing finite holds.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.federation.loop import Loop
from dpfedbench.methods.method import Method
from dpfedbench.parts.client_updates.summed_steps import SummedSteps, SummedUpdate
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpfedbench.parts.server.average import Average
from dpfedbench.parts.sum import Sum

SUMMED: dict[str, Any] = {
    "clients": {"partition": "fragments"},
    "participation": {"kind": "poisson-lots"},
    "server": {"kind": "average"},
}


def loop_of(participation: PoissonLots, update: SummedUpdate, server: Average, own: tuple[Sum, ...]) -> Loop:
    """The loop of parties that keep one model: its last sum takes what all of them have."""
    last = Sum(name="model", unit="record", observer="everyone")
    return Loop(participation=participation, client=update, own=own, server=last, step=server)


class Cells(Method):
    """Each round a sum over a lot of each party, as it is, and a step along all of them."""

    name: ClassVar[str] = "cells"
    title: ClassVar[str] = "Known cells, not private"
    paper: ClassVar[str] = "dp-fnas"
    defaults: ClassVar[dict[str, Any]] = SUMMED | {
        "client_update": {"kind": "summed-steps"}, "model": {"kind": "darts-cells"},
    }  # fmt: skip

    participation: PoissonLots = PoissonLots()
    client_update: SummedSteps = SummedSteps()
    server: Average = Average()

    def loop(self) -> Loop:
        own = Sum(name=self.client_update.sends, unit="record", observer="server", added=True)
        return loop_of(self.participation, self.client_update, self.server, (own,))
