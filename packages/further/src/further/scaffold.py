"""SCAFFOLD (Karimireddy et al., Stochastic Controlled Averaging for Federated Learning,
2020), without privacy (`fedavg` with this update) and with two private sums.

Each client keeps a control variate c_k, at first 0, and the server one, c. A step
follows g_k(w) - c_k + c, and after K steps of rate r the client sends two vectors
(Algorithm 1, option II):

    w_t - w_k    and    c_k' - c_k = (w_t - w_k) / (K r) - c.

The server steps along the mean of the first, and adds to c the sum of the second over
the number of all clients, so that c stays the mean of all c_k.

With privacy each vector has its own threshold, sum and noise. A client is in both sums
of a round or in neither, so that a round is, to a client, one Gaussian release of
multiplier (z^-2 + z_c^-2)^-1/2, and one budget covers both. A client also clips the
change of its control variate and keeps the clipped change: otherwise c would be the
mean of other control variates than those that clients subtract. A client's state leaves
only through these sums. It follows from the client's records, from the server's
broadcasts, and from the rounds in which the client took part. docs/privacy.md says why
these rounds do not change the account for the participations that `DpScaffold` accepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.config.rules import Rule
from dpfedbench.lazy import torch
from dpfedbench.papers.federated_averaging import DpFedAvg
from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.training.client_updates.model_difference import ModelDifference
from dpsum.clipping import Constant
from dpsum.noise import Gaussian
from dpsum.participation import MinSeparation, Poisson, ShuffledEpochs
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.training.client_updates.local_model import LocalClient, LocalModel

CONTROL = "control-difference-sum"


class Scaffold(ModelDifference):
    """SCAFFOLD: the model difference of steps that control variates correct, and the
    change of the client's control variate.
    """

    kind: Literal["scaffold"] = "scaffold"  # type: ignore[assignment]  # each kind has its name
    sends_too = (CONTROL,)
    keeps_state = True

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda update, run: update.optimizer != Sgd(),
            "client_update.optimizer must be sgd without momentum: SCAFFOLD"
            " computes a control variate as the client's model difference"
            " divided by its rates",
        ),
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
