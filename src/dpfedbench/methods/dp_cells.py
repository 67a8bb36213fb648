"""Training of a network of known cells by DP-SGD (Abadi et al. 2016), the private rival of DP-FNAS' augmentation.

Each round each party takes a Poisson lot of its records, clips each record's gradient to C, adds them up and adds
N(0, z^2 C^2 I); the server steps along the sum of the parties' sums. Where a search found the cells, its releases read
the same records: the account is of both together.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from dpfedbench.method import check_noise
from dpfedbench.methods.cells import Cells
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.clipping.constant import Constant
from dpfedbench.parts.noise.fixed import Fixed
from dpsum.sums import Sum


class DpCells(Cells):
    """A private sum of each party a round, over single records."""

    name: ClassVar[str] = "dp-cells"
    title: ClassVar[str] = "Known cells, DP-SGD"
    defaults: ClassVar[dict[str, Any]] = Cells.defaults | {
        "clipping": {"kind": "constant"}, "noise": {"kind": "fixed"}, "budget": {"profile": "holds"},
    }  # fmt: skip

    clipping: Constant = Constant(threshold=1.0)
    noise: Fixed = Fixed()
    budget: Budget = Budget()

    def check(self) -> None:
        super().check()
        check_noise(self.noise, self.budget)

    def own_sums(self) -> tuple[Sum, ...]:
        (own,) = super().own_sums()
        return (dataclasses.replace(own, clipping=self.clipping, noise=self.noise, budget=self.budget),)
