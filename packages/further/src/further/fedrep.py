"""FedRep (Collins et al., Exploiting Shared Representations for Personalized Federated
Learning, 2021), without privacy and with user-level privacy.

Clients share the body of the network (the representation phi), and each keeps a head
h_k, the last layer. A client of the cohort (Algorithm 1)

1. takes steps of its head, with the received body fixed;
2. takes steps of the body, with its new head fixed;
3. sends the change of the body.

With privacy the server clips each client's change of the body, adds the changes up and
adds noise, as DP-FedAvg does for the whole model (Hu et al., Private Multi-Task
Learning, and Jain et al., Differentially Private Model Personalization, both 2021, study
private shared representations). The heads get no noise and are in no sum. A head never
leaves its client; a message depends on it, and so on the client's records, on releases
and on the rounds in which the client took part. docs/privacy.md ("Clients that
remember") says which participations allow that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.config.rules import Rule
from dpfedbench.papers.federated_averaging import DpFedAvg, FedAvg
from dpfedbench.parts.server.server_step import Step
from dpfedbench.training.client_updates.model_difference import DifferenceUpdate
from dpsum.participation import Poisson

if TYPE_CHECKING:
    from dpfedbench.lazy import torch
    from dpfedbench.training.client_updates.local_model import LocalClient, LocalModel


class HeadThenBody(DifferenceUpdate):
    """Steps of the client's own head, then of the shared body."""

    kind: Literal["head-then-body"] = "head-then-body"
    sends = "body-difference-sum"
    any_size = True
    keeps_state = True

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda update, run: run.shared != "body",
            "client_update.kind {part.kind} trains a head for each client, but the"
            " clients of {run.name} share {run.shared}: take the method fedrep or"
            " dp-fedrep",
        ),
    )

    head_steps: int = setting(10, ge=1, le=100_000, doc="steps of the head in a round")
    head_rate: float = setting(
        0.1, gt=0, le=1e6, doc="learning rate of the head's steps"
    )
    body_steps: int = setting(1, ge=1, le=100_000, doc="steps of the body in a round")
    body_rate: float = setting(
        0.1, gt=0, le=1e6, doc="learning rate of the body's steps"
    )

    def contributions(
        self, model: LocalModel, cohort: Sequence[LocalClient], index: int
    ) -> Iterator[Any]:
        for client in cohort:
            weights = self.personal_model(model, client)
            client.state["head"] = weights[model.head]
            for _ in range(self.body_steps):
                self._step(model, client, weights, model.shared, self.body_rate)
            yield model.weights - weights

    def personal_model(self, model: LocalModel, client: LocalClient) -> torch.Tensor:
        """Return the server's body with the client's head, fitted to that body."""
        weights = model.weights
        if "head" in client.state:
            weights[model.head] = client.state["head"]
        for _ in range(self.head_steps):
            self._step(model, client, weights, model.head, self.head_rate)
        return weights

    def _step(
        self,
        model: LocalModel,
        client: LocalClient,
        weights: torch.Tensor,
        moved: torch.Tensor,
        rate: float,
    ) -> None:
        """Move some coordinates (bool [d]) of the weights along their gradient."""
        assert client.records is not None
        gradient = model.gradient(weights, client.records)
        weights[moved] -= rate * gradient[moved]


class FedRep(FedAvg):
    """FedRep without privacy."""

    name = "fedrep"
    title = "Non-private FedRep"
    paper = "personalised"
    version = "1"
    shared: ClassVar[str] = "body"

    participation: Poisson = Poisson()  # type: ignore[assignment]  # not lots of records
    client_update: HeadThenBody = HeadThenBody()  # type: ignore[assignment]  # no other update trains a head
    server: Step = Step()  # type: ignore[assignment]  # not an average of models


class DpFedRep(DpFedAvg):
    """FedRep with one private sum in each round, over the cohort's changes of the body.

    The claim is the moments accountant of DP-FedAvg.
    """

    name = "dp-fedrep"
    title = "DP-FedRep"
    paper = "personalised"
    shared: ClassVar[str] = "body"

    client_update: HeadThenBody = HeadThenBody()  # type: ignore[assignment]  # no other update trains a head
