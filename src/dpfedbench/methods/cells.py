"""Training of a network of known cells, not private: DP-FNAS' augmentation (Singh et al. 2020, Section 4).

The cells that a search found make a larger network, which is trained from scratch on all training records, and tested.
As the paper has it the records are then used without privacy, whatever the search was: nothing finite holds.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.methods.over_parties import OverParties
from dpfedbench.parts.client_updates.summed_steps import SummedSteps
from dpsum.sums import Sum


class Cells(OverParties):
    """Each round a sum over a lot of each party, as it is, and a step along all of them."""

    name: ClassVar[str] = "cells"
    title: ClassVar[str] = "Known cells, not private"
    paper: ClassVar[str] = "dp-fnas"
    defaults: ClassVar[dict[str, Any]] = OverParties.defaults | {
        "client_update": {"kind": "summed-steps"}, "model": {"kind": "darts-cells"},
    }  # fmt: skip

    client_update: SummedSteps = SummedSteps()

    def own_sums(self) -> tuple[Sum, ...]:
        return (Sum(name=self.client_update.sends, unit="record", observer="server", added=True),)
