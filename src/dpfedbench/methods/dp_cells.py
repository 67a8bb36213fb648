"""Training of a network of known cells by DP-SGD (Abadi et al. 2016), the private rival of DP-FNAS' augmentation.

Each round each party takes a Poisson lot of its records, clips each record's gradient to C, adds them up and adds
N(0, z^2 C^2 I); the server steps along the sum of the parties' sums. Where a search found the cells, its releases read
the same records: the account is of both together.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.federation.loop import Loop
from dpfedbench.methods.cells import Cells, loop_of
from dpfedbench.methods.method import check_noise
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.clipping.constant import Constant
from dpfedbench.parts.noise.fixed import Fixed
from dpfedbench.parts.sum import Sum


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
        check_claim(self)

    def loop(self) -> Loop:
        own = Sum(
            name=self.client_update.sends, unit="record", observer="server", clipping=self.clipping,
            noise=self.noise, budget=self.budget, added=True,
        )  # fmt: skip
        return loop_of(self.participation, self.client_update, self.server, (own,))


def check_claim(run: Any) -> None:
    """Refuse what only runs that claim nothing may have.

    Raises:
        BenchError: gradients are cut without noise.
    """
    for name, step in run.client_update.steps.items():
        if step.cut is not None:
            raise BenchError(
                f"client_update: cut is {step.cut:g} for {name}, which is for runs that claim no privacy: set it to "
                "null, the clipping rule has the threshold"
            )
