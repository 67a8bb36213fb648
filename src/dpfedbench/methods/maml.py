"""Non-private MAML (Finn et al. 2017): the same rounds as DP-AGR without clipping and noise, the ceiling."""

from __future__ import annotations

from typing import ClassVar

from dpfedbench.method import Method
from dpfedbench.parts.client_updates.maml import Maml
from dpfedbench.parts.participation.balls_and_bins import BallsAndBins
from dpfedbench.parts.participation.fixed_size import FixedSize
from dpfedbench.parts.participation.min_separation import MinSeparation
from dpfedbench.parts.participation.one_pass import OnePass
from dpfedbench.parts.participation.poisson import Poisson
from dpfedbench.parts.participation.shuffled_epochs import ShuffledEpochs
from dpfedbench.parts.server.step import Step
from dpsum.sums import Sum


class NonPrivateMaml(Method):
    """Each round: the cohort's MAML query gradients, summed as they are, and a step along their mean."""

    name: ClassVar[str] = "maml"
    title: ClassVar[str] = "Non-private MAML"
    paper: ClassVar[str] = "dp-fedmeta"

    participation: OnePass | BallsAndBins | Poisson | FixedSize | ShuffledEpochs | MinSeparation = OnePass()
    client_update: Maml = Maml()
    server: Step = Step()

    def server_sum(self) -> Sum:
        return Sum(name=self.client_update.sends, unit="client", observer="everyone")
