"""Federated search for an architecture, not private (FNAS; Singh et al. 2020, Algorithm 1 without clipping and noise).

With one party it is DARTS of first order (Liu et al. 2018), "vanilla NAS".
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.methods.over_parties import OverParties
from dpfedbench.parts.client_updates.search_steps import SearchSteps
from dpsum.sums import Sum


class Fnas(OverParties):
    """Each round two sums of each party as they are, of the weights and of the architecture, and a step after each."""

    name: ClassVar[str] = "fnas"
    title: ClassVar[str] = "FNAS"
    paper: ClassVar[str] = "dp-fnas"
    defaults: ClassVar[dict[str, Any]] = OverParties.defaults | {
        "client_update": {"kind": "search-steps"}, "model": {"kind": "darts-search"},
    }  # fmt: skip

    client_update: SearchSteps = SearchSteps()

    def own_sums(self) -> tuple[Sum, ...]:
        return tuple(
            Sum(name=name, unit="record", observer="server", stream=name, part=half, added=True)
            for name, half in self.client_update.halves.items()
        )
