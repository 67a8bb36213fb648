"""SCAFFOLD (Karimireddy et al. 2020) with two private sums over clients: model
differences, and control variates.

The rounds of DP-FedAvg, whose clients send two vectors (`client_updates.scaffold`).
Each is clipped to a threshold of its own, summed, and noised by itself. A client is in
both sums of a round or in neither, so that a round is, to a client, one Gaussian
release of multiplier (z^-2 + z_c^-2)^-1/2 (`dpsum.sums.together`), and one budget
covers both. The paper has no privacy; what is claimed here is the moments accountant of
DP-FedAvg, with both sums counted.
"""

from dpfedbench.methods.dp_fedavg import DpFedAvg
from dpfedbench.parts.client_updates.scaffold import Scaffold
from dpfedbench.parts.clipping.rule import Constant
from dpfedbench.parts.noise.noise import Fixed
from dpfedbench.parts.participation.cohorts import (
    MinSeparation,
    Poisson,
    ShuffledEpochs,
)
from dpfedbench.settings.part import setting
from dpsum.sums import Sum


class DpScaffold(DpFedAvg):
    """Two private sums a round, of the cohort's model differences and of what their
    control variates move by.
    """

    name = "dp-scaffold"
    title = "DP-SCAFFOLD"
    paper = "clients-that-differ"

    participation: Poisson | ShuffledEpochs | MinSeparation = Poisson()
    client_update: Scaffold = Scaffold()
    noise: Fixed = Fixed()
    control_clipping: Constant = setting(
        Constant(), doc="of what control variates move by"
    )
    control_noise: Fixed = setting(Fixed(), doc="of their sum")

    def further_sums(self) -> tuple[Sum, ...]:
        (name,) = self.client_update.sends_too
        control = Sum(
            name=name,
            unit="client",
            observer="everyone",
            clipping=self.control_clipping,
            noise=self.control_noise,
            budget=self.budget,
            stream="control-noise",
        )
        return (control,)
