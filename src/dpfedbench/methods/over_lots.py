"""What methods have in common whose clients sum over lots of their own records, with
privacy for each record.
"""

from typing import ClassVar

from dpfedbench.method import Method
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.client_updates.local_steps import LocalSteps
from dpfedbench.parts.clipping.rule import Constant, LotRule
from dpfedbench.parts.noise.noise import Decaying, Fixed
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpfedbench.parts.server.server_step import Average
from dpfedbench.parts.transforms.transform import AsTheyAre, Transform
from dpsum.sums import Sum


class OverLots(Method):
    """Each client takes a private sum a step, over a lot of its records; `observer` is
    who sees it.
    """

    observer: ClassVar[str] = "server"

    participation: PoissonLots = PoissonLots()
    client_update: LocalSteps = LocalSteps()
    transform: Transform = AsTheyAre()
    clipping: LotRule = Constant()
    noise: Fixed | Decaying = Fixed()
    budget: Budget = Budget()
    server: Average = Average()

    def own_sums(self) -> tuple[Sum, ...]:
        own = Sum(
            name=self.client_update.sends,
            unit="record",
            observer=self.observer,
            clipping=self.clipping,
            noise=self.noise,
            budget=self.budget,
            transform=self.transform,
        )
        return (own,)

    def server_sum(self) -> Sum:
        return Sum(name="model-mean", unit="record", observer="everyone")
