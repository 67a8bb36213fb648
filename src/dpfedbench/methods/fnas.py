"""Federated search for an architecture, not private (FNAS; Singh et al. 2020, Algorithm 1 without clipping and noise).

With one party it is DARTS of first order (Liu et al. 2018), "vanilla NAS".
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.federation.loop import Loop
from dpfedbench.methods.cells import SUMMED, loop_of
from dpfedbench.methods.method import Method
from dpfedbench.parts.client_updates.search_steps import SearchSteps
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpfedbench.parts.server.average import Average
from dpfedbench.parts.sum import Sum


class Fnas(Method):
    """Each round two sums of each party as they are, of the weights and of the architecture, and a step after each."""

    name: ClassVar[str] = "fnas"
    title: ClassVar[str] = "FNAS"
    paper: ClassVar[str] = "dp-fnas"
    defaults: ClassVar[dict[str, Any]] = SUMMED | {
        "client_update": {"kind": "search-steps"}, "model": {"kind": "darts-search"},
    }  # fmt: skip

    participation: PoissonLots = PoissonLots()
    client_update: SearchSteps = SearchSteps()
    server: Average = Average()

    def loop(self) -> Loop:
        own = tuple(
            Sum(name=name, unit="record", observer="server", stream=name, part=half, added=True)
            for name, half in self.client_update.halves.items()
        )
        return loop_of(self.participation, self.client_update, self.server, own)
