"""SCAFFOLD (Karimireddy et al. 2020) with two private sums over clients: model differences, and control variates.

The rounds of DP-FedAvg, whose clients send two vectors (`client_updates.scaffold`). Each is clipped to a threshold of
its own, summed, and noised by itself. A client is in both sums of a round or in neither, so that a round is, to a
client, one Gaussian release of multiplier (z^-2 + z_c^-2)^-1/2 (`dpsum.sums.together`), and one budget covers both. The
paper has no privacy; what is claimed here is the moments accountant of DP-FedAvg, with both sums counted.
"""

from __future__ import annotations

from typing import ClassVar

from dpfedbench.method import check_noise
from dpfedbench.methods.dp_fedavg import DpFedAvg
from dpfedbench.parts.client_updates.scaffold import Scaffold
from dpfedbench.parts.clipping.constant import Constant
from dpfedbench.parts.noise.fixed import Fixed
from dpfedbench.parts.participation.min_separation import MinSeparation
from dpfedbench.parts.participation.poisson import Poisson
from dpfedbench.parts.participation.shuffled_epochs import ShuffledEpochs
from dpfedbench.settings.part import setting
from dpsum.sums import Sum


class DpScaffold(DpFedAvg):
    """Two private sums a round, of the cohort's model differences and of what their control variates move by."""

    name: ClassVar[str] = "dp-scaffold"
    title: ClassVar[str] = "DP-SCAFFOLD"
    paper: ClassVar[str] = "clients-that-differ"

    participation: Poisson | ShuffledEpochs | MinSeparation = Poisson()
    client_update: Scaffold = Scaffold()
    noise: Fixed = Fixed()
    control_clipping: Constant = setting(Constant(), doc="of what control variates move by")
    control_noise: Fixed = setting(Fixed(), doc="of their sum")

    def check(self) -> None:
        super().check()
        check_noise(self.control_noise, self.budget)

    def further_sums(self) -> tuple[Sum, ...]:
        (name,) = self.client_update.sends_too
        control = Sum(
            name=name, unit="client", observer="everyone", clipping=self.control_clipping, noise=self.control_noise,
            budget=self.budget, stream="control-noise",
        )  # fmt: skip
        return (control,)
