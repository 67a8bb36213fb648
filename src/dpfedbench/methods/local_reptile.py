"""Local DP Reptile (Differentially Private Meta-Learning, Li et al. 2020, Section 4): the paper's other private method.

Each client of the cohort, once in all, trains from the meta-model on its own examples without noise, and clips and
noises the difference of the weights itself: the server, too, learns next to nothing of all that it holds. The server
moves the meta-model by the mean of what it gets.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.methods.reptile import NonPrivateReptile
from dpfedbench.parts.budget import OwnUpdate
from dpfedbench.parts.client_updates.noised import OWN_UPDATE, Noised
from dpsum.accounting.claims import REPTILE_STEPS, Claims
from dpsum.sums import Sum


class LocalReptile(NonPrivateReptile):
    """A private sum of each client over its update alone, and the mean of what comes of it."""

    name: ClassVar[str] = "local-reptile"
    title: ClassVar[str] = "Local DP Reptile"
    claims: ClassVar[Claims] = {"own-update": REPTILE_STEPS}
    defaults: ClassVar[dict[str, Any]] = {
        **NonPrivateReptile.defaults,
        "own_update": {
            "threshold": 0.01,
            "multiplier": 0.51,
            "epsilon": None,
            "delta": 1.0e-3,
            "profile": "as_claimed",
        },
    }

    own_update: OwnUpdate = OwnUpdate()

    @property
    def client(self) -> Noised:
        return Noised(update=self.client_update)  # type: ignore[call-arg]  # it has no kind

    def own_sums(self) -> tuple[Sum, ...]:
        return (self.own_update.sum(OWN_UPDATE, observer="server"),)
