"""DP-FL with one threshold and one noise scale for all clients and rounds: the baseline of Adap DP-FL.

Each client clips each record's gradient to C and adds N(0, z^2 C^2 I) to their sum (Zheng et al. 2021, in Section V
of Adap DP-FL): record-level privacy against the server. Local DP-FedAvg in the sense that no one else is trusted.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.accounting.claims import WHOLE_ORDERS, Claims
from dpfedbench.federation.loop import Loop
from dpfedbench.methods.method import Method, check_noise
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.client_updates.local_steps import LocalSteps
from dpfedbench.parts.clipping.constant import Constant
from dpfedbench.parts.clipping.rule import LotRule
from dpfedbench.parts.noise.decaying import Decaying
from dpfedbench.parts.noise.fixed import Fixed
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpfedbench.parts.server.average import Average
from dpfedbench.parts.sum import Sum


class LotMethod(Method):
    """What methods have in common whose clients sum over lots of their own records, with privacy for each record."""

    claims: ClassVar[Claims] = {"poisson-lots": WHOLE_ORDERS}
    observer: ClassVar[str] = "server"

    participation: PoissonLots = PoissonLots()
    client_update: LocalSteps = LocalSteps()
    clipping: LotRule = Constant()
    noise: Fixed | Decaying = Fixed()
    budget: Budget = Budget()
    server: Average = Average()

    def check(self) -> None:
        super().check()
        check_noise(self.noise, self.budget)

    def loop(self) -> Loop:
        own = Sum(
            name=self.client_update.sends, unit="record", observer=self.observer, clipping=self.clipping,
            noise=self.noise, budget=self.budget,
        )  # fmt: skip
        return Loop(
            participation=self.participation, client=self.client_update, own=(own,),
            server=Sum(name="model-mean", unit="record", observer="everyone"), step=self.server,
        )  # fmt: skip


class DpFl(LotMethod):
    """Each client's local steps along noisy sums of clipped gradients, and the models' average."""

    name: ClassVar[str] = "dp-fl"
    title: ClassVar[str] = "DP-FL, constant clipping and noise"
    paper: ClassVar[str] = "adap-dp-fl"
    version: ClassVar[str] = "2"
    defaults: ClassVar[dict[str, Any]] = {"clipping": {"kind": "constant"}, "noise": {"kind": "fixed"}}

    clipping: Constant = Constant()
    noise: Fixed = Fixed()
