"""Non-private FedAvg (McMahan et al. 2017): the rounds of Adap DP-FL without clipping
and noise, the ceiling.
"""

from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.parts.client_updates.local_steps import LocalSteps
from dpfedbench.parts.client_updates.model_difference import ModelDifference
from dpfedbench.parts.client_updates.proximal import Proximal
from dpfedbench.parts.client_updates.scaffold import Scaffold
from dpfedbench.parts.participation.cohorts import BallsAndBins, OnePass, Poisson
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpfedbench.parts.server.server_step import Average, Step
from dpsum.sums import Sum


class FedAvg(Method):
    """Each round: every client's local steps along the sums of its lots as they are,
    and the models' average.

    With model-difference, proximal (FedProx) or scaffold a cohort of clients trains on
    all of its records, and the server steps along the mean.
    """

    name = "fedavg"
    title = "Non-private FedAvg"
    paper = "adap-dp-fl"
    version = "2"

    participation: PoissonLots | OnePass | BallsAndBins | Poisson = PoissonLots()
    client_update: LocalSteps | ModelDifference | Proximal | Scaffold = LocalSteps()
    server: Average | Step = Average()

    def check(self) -> None:
        lots, averages = (
            isinstance(self.participation, PoissonLots),
            isinstance(self.server, Average),
        )
        if not lots == averages == isinstance(self.client_update, LocalSteps):
            raise BenchError(
                f"client_update.kind {self.client_update.kind}, participation.kind"
                f" {self.participation.kind} and server.kind {self.server.kind} do not"
                " go together: local-steps, poisson-lots and average do, and"
                " model-difference, proximal or scaffold with a cohort and server.kind"
                " step"
            )
        super().check()

    def own_sums(self) -> tuple[Sum, ...]:
        if isinstance(self.client_update, ModelDifference):
            return ()
        return (Sum(name=self.client_update.sends, unit="record", observer="server"),)

    def further_sums(self) -> tuple[Sum, ...]:
        return tuple(
            Sum(name=name, unit="client", observer="everyone")
            for name in self.client_update.sends_too
        )

    def server_sum(self) -> Sum:
        name = "model-mean" if self.own_sums() else self.client_update.sends
        return Sum(name=name, unit="client", observer="everyone")
