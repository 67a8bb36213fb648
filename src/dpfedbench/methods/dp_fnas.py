"""DP-FNAS (Singh et al. 2020, Algorithm 1): a private federated search for an
architecture; and FNAS without privacy.

Each iteration, each party

1. takes a Poisson lot of its training half, clips each record's gradient of the weights
   W to R_G, adds them up and adds N(0, sigma^2 R_G^2 I): a release; the server steps W
   along the parties' sums;
2. takes a Poisson lot of its validation half, clips each record's gradient of the
   architecture A, at the new W, to R_H, adds them up and adds N(0, tau^2 R_H^2 I): a
   release; the server steps A.

A record is in one half, so what holds for it is the larger of the two mechanisms, not
their composition (Section 3.2). Sums are divided by the expected lot: to divide by the
realised one, as Algorithm 1 does, tells how many came. Eq. 7 (second order) reads both
halves in one release and is none of this method's.
"""

import dataclasses
from typing import Any

from dpfedbench.methods.over_parties import OverParties
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.client_updates.search_steps import (
    ARCHITECTURE,
    WEIGHTS,
    SearchSteps,
)
from dpfedbench.parts.clipping.rule import Constant
from dpfedbench.parts.noise.noise import Fixed
from dpfedbench.settings.part import setting
from dpsum.accounting.claims import GDP_OF_HALVES
from dpsum.sums import Sum


class Fnas(OverParties):
    """Each round two sums of each party as they are, of the weights and of the
    architecture, and a step after each.

    Algorithm 1 without clipping and noise; with one party it is DARTS of first order
    (Liu et al. 2018), "vanilla NAS".
    """

    name = "fnas"
    title = "FNAS"
    paper = "dp-fnas"
    defaults = OverParties.defaults | {
        "client_update": {"kind": "search-steps"},
        "model": {"kind": "darts-search"},
    }

    client_update: SearchSteps = SearchSteps()

    def own_sums(self) -> tuple[Sum, ...]:
        return tuple(
            Sum(
                name=name,
                unit="record",
                observer="server",
                stream=name,
                part=half,
                added=True,
            )
            for name, half in self.client_update.halves.items()
        )


class DpFnas(Fnas):
    """Each round two private sums of each party, each over a half of its records."""

    name = "dp-fnas"
    title = "DP-FNAS"
    claims = {"poisson-lots": GDP_OF_HALVES}
    defaults = Fnas.defaults | {
        "clipping": {"kind": "constant"},
        "noise": {"kind": "fixed"},
        "budget": {"profile": "holds"},
    }

    clipping: Constant = setting(
        Constant(threshold=1.0), doc="of the weights' gradients, R_G", paper="0.01"
    )
    noise: Fixed = setting(Fixed(), doc="of the weights' sum, sigma", paper="1")
    architecture_clipping: Constant = setting(
        Constant(threshold=0.1), doc="of the architecture's gradients, R_H", paper="0.1"
    )
    architecture_noise: Fixed = setting(
        Fixed(), doc="of the architecture's sum, tau", paper="1"
    )
    budget: Budget = Budget()

    def own_sums(self) -> tuple[Sum, ...]:
        protected: dict[str, dict[str, Any]] = {
            WEIGHTS: {"clipping": self.clipping, "noise": self.noise},
            ARCHITECTURE: {
                "clipping": self.architecture_clipping,
                "noise": self.architecture_noise,
            },
        }
        return tuple(
            dataclasses.replace(own, budget=self.budget, **protected[own.name])
            for own in super().own_sums()
        )
