"""Non-private Reptile (Nichol et al. 2018), in batches: task-global DP Reptile without clipping and noise."""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.method import Method
from dpfedbench.parts.client_updates.reptile import Reptile
from dpfedbench.parts.participation.balls_and_bins import BallsAndBins
from dpfedbench.parts.participation.one_pass import OnePass
from dpfedbench.parts.participation.passes import Passes
from dpfedbench.parts.participation.poisson import Poisson
from dpfedbench.parts.server.step import Step
from dpsum.sums import Sum


class NonPrivateReptile(Method):
    """What a cohort's training makes of the weights, in the mean: phi <- phi + eps (mean of theta_t - phi)."""

    name: ClassVar[str] = "reptile"
    title: ClassVar[str] = "Non-private Reptile"
    paper: ClassVar[str] = "dp-meta-learning-gbml"
    defaults: ClassVar[dict[str, Any]] = {
        "model": {"normalisation": "record"},
        "client_update": {"kind": "reptile", "inner_steps": 5, "inner_rate": 0.001, "optimizer": "adam"},
        "server": {"optimizer": "sgd", "rate": 1.0},
    }

    participation: OnePass | BallsAndBins | Poisson | Passes = OnePass()
    client_update: Reptile = Reptile()
    server: Step = Step()

    def server_sum(self) -> Sum:
        return Sum(name=self.client_update.sends, unit="client", observer="everyone")
