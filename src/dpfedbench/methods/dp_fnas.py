"""DP-FNAS (Singh et al. 2020, Algorithm 1): a private federated search for an architecture.

Each iteration, each party

1. takes a Poisson lot of its training half, clips each record's gradient of the weights W to R_G, adds them up and adds
   N(0, sigma^2 R_G^2 I): a release; the server steps W along the parties' sums;
2. takes a Poisson lot of its validation half, clips each record's gradient of the architecture A, at the new W, to R_H,
   adds them up and adds N(0, tau^2 R_H^2 I): a release; the server steps A.

A record is in one half, so what holds for it is the larger of the two mechanisms, not their composition (Section 3.2).
Sums are divided by the expected lot: to divide by the realised one, as Algorithm 1 does, tells how many came. Eq. 7
(second order) reads both halves in one release and is none of this method's.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from dpfedbench.method import check_noise
from dpfedbench.methods.fnas import Fnas
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.client_updates.search_steps import ARCHITECTURE, WEIGHTS
from dpfedbench.parts.clipping.constant import Constant
from dpfedbench.parts.noise.fixed import Fixed
from dpfedbench.settings.part import setting
from dpsum.accounting.claims import GDP_OF_HALVES, Claims
from dpsum.sums import Sum


class DpFnas(Fnas):
    """Each round two private sums of each party, each over a half of its records."""

    name: ClassVar[str] = "dp-fnas"
    title: ClassVar[str] = "DP-FNAS"
    claims: ClassVar[Claims] = {"poisson-lots": GDP_OF_HALVES}
    defaults: ClassVar[dict[str, Any]] = Fnas.defaults | {
        "clipping": {"kind": "constant"}, "noise": {"kind": "fixed"}, "budget": {"profile": "holds"},
    }  # fmt: skip

    clipping: Constant = setting(Constant(threshold=1.0), doc="of the weights' gradients, R_G", paper="0.01")
    noise: Fixed = setting(Fixed(), doc="of the weights' sum, sigma", paper="1")
    architecture_clipping: Constant = setting(
        Constant(threshold=0.1), doc="of the architecture's gradients, R_H", paper="0.1"
    )
    architecture_noise: Fixed = setting(Fixed(), doc="of the architecture's sum, tau", paper="1")
    budget: Budget = Budget()

    def check(self) -> None:
        super().check()
        check_noise(self.noise, self.budget)
        check_noise(self.architecture_noise, self.budget)

    def own_sums(self) -> tuple[Sum, ...]:
        parts = {
            WEIGHTS: (self.clipping, self.noise),
            ARCHITECTURE: (self.architecture_clipping, self.architecture_noise),
        }
        return tuple(
            dataclasses.replace(own, clipping=parts[own.name][0], noise=parts[own.name][1], budget=self.budget)
            for own in super().own_sums()
        )
