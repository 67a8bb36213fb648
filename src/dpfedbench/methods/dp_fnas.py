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

The authors' released code (`reading: as-released`) protects no record: see
`client_updates.released_search`.
"""

import dataclasses
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.methods.over_parties import OverParties
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.client_updates.released_search import ReleasedSearchSteps
from dpfedbench.parts.client_updates.search_steps import (
    ARCHITECTURE,
    WEIGHTS,
    SearchSteps,
)
from dpfedbench.parts.clipping.by_kernel import ByKernel
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

    # R_G and R_H are those of the repository's command, and of the text.
    released = {
        "client_update": {"kind": "released-search-steps"},
        "clipping": {"kind": "by-kernel", "threshold": None, "kernel_norm": 0.01},
        "noise": {"kind": "fixed", "multiplier": 1.0},
        "architecture_clipping": {"kind": "constant", "threshold": 0.1},
        "architecture_noise": {"kind": "fixed", "multiplier": 1.0},
    }

    client_update: SearchSteps | ReleasedSearchSteps = SearchSteps()
    clipping: Constant | ByKernel = setting(
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

    def check(self) -> None:
        super().check()
        by_kernel = isinstance(self.clipping, ByKernel)
        if isinstance(self.client_update, ReleasedSearchSteps) and not by_kernel:
            raise BenchError(
                f"clipping.kind is {self.clipping.kind}, but client_update.kind"
                " released-search-steps clips by kernel: set clipping.kind to by-kernel"
            )

    def own_sums(self) -> tuple[Sum, ...]:
        if isinstance(self.client_update, ReleasedSearchSteps):
            return (self._released_sum(),)
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

    def _released_sum(self) -> Sum:
        """Return the sum over one clipped mean gradient a lot, of the noised kernels
        alone.
        """
        weights, _ = super().own_sums()
        return dataclasses.replace(
            weights, clipping=self.clipping, noise=self.noise, budget=self.budget
        )
