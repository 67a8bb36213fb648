"""Federated averaging and its variants for clients that differ: FedAvg, FedProx and
SCAFFOLD, without privacy and with user-level privacy.

FedAvg (McMahan et al. 2017). Each client takes K steps from the broadcast model w_t to
w_k, each along the mean gradient of all of its records, and sends w_t - w_k.

FedProx (Li et al., Federated Optimization in Heterogeneous Networks, 2020). A client
takes its steps on h_k(w; w_t) = F_k(w) + mu/2 ||w - w_t||^2 (their eq. 2): each step's
gradient is that of its records plus mu (w - w_t).

SCAFFOLD (Karimireddy et al., Stochastic Controlled Averaging for Federated Learning,
2020). Each client keeps a control variate c_k, at first 0, and the server one, c. A
step follows g_k(w) - c_k + c, and after K steps of rate r the client sends two vectors
(Algorithm 1, option II):

    w_t - w_k    and    c_k' - c_k = (w_t - w_k) / (K r) - c.

The server steps along the mean of the first, and adds to c the sum of the second over
the number of all clients, so that c stays the mean of all c_k.

With user-level privacy (DP-FedAvg: McMahan et al., Learning Differentially Private
Recurrent Language Models, 2018), each round the server

1. samples a cohort of L clients at random;
2. clips each client's vector to C in L2 norm over all weights, adds the vectors up and
   adds N(0, z^2 C^2 I);
3. takes the sum / L as the gradient of a step.

FedProx's clients send one vector, so that the same guarantee holds for every mu.
SCAFFOLD's clients send two. Each vector has its own threshold, sum and noise. A client
is in both sums of a round or in neither, so that a round is, to a client, one Gaussian
release of multiplier (z^-2 + z_c^-2)^-1/2 (`dpsum.sums.together`), and one budget
covers both. A client also clips the change of its control variate and keeps the clipped
change: otherwise c would be the mean of other control variates than those that clients
subtract. A client's state leaves only through these sums. It follows from the client's
records, from the server's broadcasts, and from the rounds in which the client took
part. docs/privacy.md says why these rounds do not change the account for the
participations that `DpScaffold` accepts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError
from dpfedbench.lazy import torch
from dpfedbench.method import Method
from dpfedbench.papers.shared import ClientLevelMethod
from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.parts.server.server_step import Average, Step
from dpfedbench.training.client_updates.local_steps import LocalSteps
from dpfedbench.training.client_updates.model_difference import ModelDifference
from dpsum.accounting.claims import POISSON_MOMENTS
from dpsum.clipping import CohortRule, Constant
from dpsum.noise import Gaussian
from dpsum.participation import (
    BallsAndBins,
    MinSeparation,
    OnePass,
    Poisson,
    PoissonLots,
    ShuffledEpochs,
)
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.training.client_updates.local_model import LocalClient, LocalModel

CONTROL = "control-difference-sum"


class Proximal(ModelDifference):
    """FedProx: the model difference of steps with a proximal term.

    With mu = 0 it is the plain model difference.
    """

    kind: Literal["proximal"] = "proximal"  # type: ignore[assignment]  # each kind has its name

    mu: float = setting(
        0.1,
        ge=0,
        le=1e6,
        doc="weight of the proximal term mu/2 ||w - w_t||^2",
        paper="0.001 to 1",
    )

    def local_gradient(
        self, gradient: torch.Tensor, model: torch.Tensor, start: torch.Tensor
    ) -> torch.Tensor:
        return gradient.add_(model - start, alpha=self.mu)


class Scaffold(ModelDifference):
    """SCAFFOLD: the model difference of steps that control variates correct, and the
    change of the client's control variate.
    """

    kind: Literal["scaffold"] = "scaffold"  # type: ignore[assignment]  # each kind has its name
    sends_too = (CONTROL,)
    keeps_state = True

    def check(self, run: Method) -> None:
        if self.optimizer != Sgd():
            raise BenchError(
                "client_update.optimizer must be sgd without momentum: SCAFFOLD"
                " computes a control variate as the client's model difference"
                " divided by its rates"
            )

    def contributions(
        self, model: LocalModel, cohort: Sequence[LocalClient], index: int
    ) -> Iterator[Any]:
        zeros = torch.zeros_like(model.weights)
        server_control = model.public_state.get("control", zeros)
        whole_rate = self.inner_steps * self.inner_rate
        for client in cohort:
            control = client.state.get("control", zeros)
            weights = self.corrected_steps(model, client, server_control - control)
            difference = model.weights - weights
            change = difference / whole_rate - server_control
            change = model.clipped(change, CONTROL)
            client.state["control"] = control + change
            yield difference, change

    def corrected_steps(
        self, model: LocalModel, client: LocalClient, correction: torch.Tensor
    ) -> torch.Tensor:
        """Return the weights after steps along the gradient plus the correction."""
        assert client.records is not None
        weights = model.weights
        for _ in range(self.inner_steps):
            gradient = model.gradient(weights, client.records) + correction
            weights.add_(gradient, alpha=-self.inner_rate)
        return weights

    def receive_broadcast(
        self, public_state: dict[str, Any], means: Mapping[str, torch.Tensor]
    ) -> None:
        change = means[CONTROL].float()
        public_state["control"] = public_state.get("control", 0.0) + change


class FedAvg(Method):
    """FedAvg without privacy: the upper bound of Adap DP-FL and of DP-FedAvg.

    With `local-steps` every client trains in every round, along the sums of its lots,
    and the server averages the models, as in Adap DP-FL. With `model-difference`,
    `proximal` (FedProx) or `scaffold`, each client of a cohort trains on all of its
    records, and the server steps along the mean.
    """

    name = "fedavg"
    title = "Non-private FedAvg"
    paper = "adap-dp-fl"
    version = "2"

    participation: PoissonLots | OnePass | BallsAndBins | Poisson = PoissonLots()
    client_update: LocalSteps | ModelDifference | Proximal | Scaffold = LocalSteps()
    server: Average | Step = Average()

    def check(self) -> None:
        lots = isinstance(self.participation, PoissonLots)
        averages = isinstance(self.server, Average)
        if not lots == averages == isinstance(self.client_update, LocalSteps):
            raise BenchError(
                f"client_update.kind {self.client_update.kind}, participation.kind"
                f" {self.participation.kind} and server.kind {self.server.kind} do"
                " not fit together: combine local-steps with poisson-lots and"
                " average, or model-difference, proximal or scaffold with a cohort"
                " and server.kind step"
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
            SumSpec(name=name, unit="client", taken_by="server", observer="everyone")
            for name in (*update.sends_too, update.sends)
        ]


class DpFedAvg(ClientLevelMethod):
    """DP-FedAvg, and FedProx with privacy (`proximal`): one private sum in each round,
    over the cohort's model differences.
    """

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

    client_update: ModelDifference | Proximal = ModelDifference()
    clipping: CohortRule = Constant()


class DpScaffold(DpFedAvg):
    """SCAFFOLD with privacy: two private sums in each round, of the cohort's model
    differences and of the changes of their control variates.

    The paper has no privacy. The claim here is the moments accountant of DP-FedAvg,
    with both sums counted.
    """

    name = "dp-scaffold"
    title = "DP-SCAFFOLD"
    paper = "clients-that-differ"
    version = "2"

    participation: Poisson | ShuffledEpochs | MinSeparation = Poisson()
    client_update: Scaffold = Scaffold()
    noise: Gaussian = Gaussian()
    control_clipping: Constant = setting(
        Constant(), doc="clipping of the changes of control variates"
    )
    control_noise: Gaussian = setting(
        Gaussian(), doc="noise of the sum of these changes"
    )

    def sums(self) -> list[SumSpec]:
        """Return the sum of the control variates, then that of the model differences."""
        control_sum = SumSpec(
            name=CONTROL,
            unit="client",
            taken_by="server",
            observer="everyone",
            clipping=self.control_clipping,
            noise=self.control_noise,
            budget=self.budget,
            stream="control-noise",
        )
        return [control_sum, *super().sums()]
