"""What methods have in common whose server takes a private sum over a cohort's clients."""

from __future__ import annotations

from dpfedbench.method import Method, check_noise
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.clipping.percentile_of_releases import PercentileOfReleases
from dpfedbench.parts.clipping.rule import CohortRule
from dpfedbench.parts.noise.fixed import Fixed
from dpfedbench.parts.participation.balls_and_bins import BallsAndBins
from dpfedbench.parts.participation.fixed_size import FixedSize
from dpfedbench.parts.participation.min_separation import MinSeparation
from dpfedbench.parts.participation.one_pass import OnePass
from dpfedbench.parts.participation.poisson import Poisson
from dpfedbench.parts.participation.shuffled_epochs import ShuffledEpochs
from dpfedbench.parts.server.step import Step
from dpfedbench.parts.transforms.none import AsTheyAre
from dpfedbench.parts.transforms.transform import Transform
from dpsum.sums import Sum


class OverClients(Method):
    """One private sum a round, over what a cohort's clients send; a method says what that is (`client_update`)."""

    participation: OnePass | BallsAndBins | Poisson | FixedSize | ShuffledEpochs | MinSeparation = OnePass()
    transform: Transform = AsTheyAre()
    clipping: CohortRule = PercentileOfReleases()
    noise: Fixed = Fixed()
    budget: Budget = Budget()
    server: Step = Step()

    def check(self) -> None:
        super().check()
        check_noise(self.noise, self.budget)

    def server_sum(self) -> Sum:
        return Sum(
            name=self.client_update.sends, unit="client", observer="everyone", clipping=self.clipping,
            noise=self.noise, budget=self.budget, transform=self.transform,
        )  # fmt: skip
