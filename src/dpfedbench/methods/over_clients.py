"""What methods have in common whose server takes a private sum over a cohort's
clients.
"""

from dpfedbench.method import Method
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.clipping.percentiles import PercentileOfReleases
from dpfedbench.parts.clipping.rule import CohortRule
from dpfedbench.parts.noise.noise import Fixed
from dpfedbench.parts.participation.cohorts import Cohorts, OnePass
from dpfedbench.parts.server.server_step import Step
from dpfedbench.parts.transforms.transform import AsTheyAre, Transform
from dpsum.sums import Sum


class OverClients(Method):
    """One private sum a round, over what a cohort's clients send; a method says what
    that is (`client_update`).
    """

    participation: Cohorts = OnePass()
    transform: Transform = AsTheyAre()
    clipping: CohortRule = PercentileOfReleases()
    noise: Fixed = Fixed()
    budget: Budget = Budget()
    server: Step = Step()

    def server_sum(self) -> Sum:
        return Sum(
            name=self.client_update.sends,
            unit="client",
            observer="everyone",
            clipping=self.clipping,
            noise=self.noise,
            budget=self.budget,
            transform=self.transform,
        )
