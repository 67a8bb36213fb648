"""Federated averaging, without privacy and with user-level privacy.

FedAvg (McMahan et al. 2017). Each client takes K steps from the broadcast model w_t to
w_k, each along the mean gradient of all of its records, and sends w_t - w_k.

With user-level privacy (DP-FedAvg: McMahan et al., Learning Differentially Private
Recurrent Language Models, 2018), each round the server

1. samples a cohort of L clients at random;
2. clips each client's vector to C in L2 norm over all weights, adds the vectors up and
   adds N(0, z^2 C^2 I);
3. takes the sum / L as the gradient of a step.

Both take any update whose clients send a model difference (`DifferenceUpdate`), also a
plugin's.
"""

from __future__ import annotations

import dataclasses

from dpfedbench.errors import BenchError
from dpfedbench.papers.adap_dp_fl import Silos
from dpfedbench.papers.shared import ClientLevelMethod
from dpfedbench.parts.optimizers.optimizer import Adam
from dpfedbench.parts.server.server_step import Average, Step
from dpfedbench.training.client_updates.local_steps import LocalSteps
from dpfedbench.training.client_updates.model_difference import (
    DifferenceUpdate,
    ModelDifference,
)
from dpsum.accounting.claims import POISSON_MOMENTS
from dpsum.clipping import CohortRule, Constant
from dpsum.participation import BallsAndBins, OnePass, Poisson, PoissonLots
from dpsum.sums import SumSpec


class FedAvg(Silos):
    """FedAvg without privacy: the upper bound of Adap DP-FL and of DP-FedAvg.

    With `local-steps` every client trains in every round, along the sums of its lots,
    and the server averages the models, as in Adap DP-FL. With `model-difference` or
    another `DifferenceUpdate`, each client of a cohort trains on all of its records,
    and the server steps along the mean.

    The values of the class are those of Adap DP-FL, Section V.
    """

    name = "fedavg"
    title = "Non-private FedAvg"
    paper = "adap-dp-fl"
    version = "2"

    # The number of rounds is not stated.
    participation: PoissonLots | OnePass | BallsAndBins | Poisson = PoissonLots(  # type: ignore[assignment]  # more than the paper's
        lot=78, rounds=4000
    )
    client_update: LocalSteps | DifferenceUpdate = LocalSteps(  # type: ignore[assignment]  # more than the paper's
        inner_steps=1, inner_rate=0.002, optimizer=Adam(), keep_state=True
    )
    server: Average | Step = Average()  # type: ignore[assignment]  # more than the paper's

    def check(self) -> None:
        lots = isinstance(self.participation, PoissonLots)
        averages = isinstance(self.server, Average)
        if not lots == averages == isinstance(self.client_update, LocalSteps):
            raise BenchError(
                f"client_update.kind {self.client_update.kind}, participation.kind"
                f" {self.participation.kind} and server.kind {self.server.kind} do"
                " not fit together: combine local-steps with poisson-lots and"
                " average, or another client_update with a cohort and server.kind"
                " step"
            )
        super().check()

    def sums(self) -> list[SumSpec]:
        update = self.client_update
        if isinstance(update, LocalSteps):
            return [
                SumSpec(
                    name=update.sends,
                    unit="record",
                    taken_by="client",
                    observer="server",
                ),
                SumSpec(name="model-mean", unit="client", observer="everyone"),
            ]
        return [
            SumSpec(name=name, unit="client", observer="everyone")
            for name in (*update.sends_too, update.sends)
        ]


class DpFedAvg(ClientLevelMethod):
    """DP-FedAvg: one private sum in each round, over the cohort's model differences."""

    name = "dp-fedavg"
    title = "DP-FedAvg"
    paper = "dp-fedavg"
    claims = {
        "poisson": dataclasses.replace(
            POISSON_MOMENTS,
            status="proved",
            explanation=(
                "the paper's: moments accounting of Poisson sampling, by TensorFlow"
                " Privacy's orders"
            ),
        )
    }

    neutral = {"clipping": Constant()}

    # Any update with a model difference; keys of runs leave out the first one's defaults.
    client_update: ModelDifference | DifferenceUpdate = ModelDifference()
    clipping: CohortRule = Constant()
