"""Local training alone: each client trains on its own records, and nothing leaves it.

It is the baseline of personalised methods: a client gains from a federation what its
model has beyond this one. Its message is the constant 0, whatever the client holds, so
that the server's model stays at its initial weights, and ε of the messages is 0 for
clients and for records. The initial weights are random, and the same for all clients.
Losses and accuracies in the results are the benchmark's measurements, as those of every
run without privacy: a federation that publishes them releases more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.rules import Rule
from dpfedbench.lazy import torch
from dpfedbench.papers.federated_averaging import FedAvg
from dpfedbench.parts.server.server_step import Step
from dpfedbench.training.client_updates.model_difference import ModelDifference
from dpsum.participation import Poisson

if TYPE_CHECKING:
    from dpfedbench.training.client_updates.local_model import LocalClient, LocalModel


class NoMessage(ModelDifference):
    """Nothing: clients take their steps for themselves, from the initial weights."""

    kind: Literal["no-message"] = "no-message"  # type: ignore[assignment]  # each kind has its name

    rules: ClassVar[tuple[Rule, ...]] = (
        *ModelDifference.rules,
        Rule(
            lambda update, run: run.name != "local-training",
            "client_update.kind {part.kind} sends nothing to the server of {run.name}:"
            " take the method local-training",
        ),
    )

    def contributions(
        self, model: LocalModel, cohort: Sequence[LocalClient], index: int
    ) -> Iterator[Any]:
        for _ in cohort:
            yield torch.zeros_like(model.weights)

    def personal_model(self, model: LocalModel, client: LocalClient) -> torch.Tensor:
        return self.local_model(model, client)


class LocalTraining(FedAvg):
    """Local training alone: clients use models that they train themselves."""

    name = "local-training"
    title = "Local training alone, ε = 0"
    paper = "personalised"
    version = "1"

    participation: Poisson = Poisson()  # type: ignore[assignment]  # not lots of records
    client_update: NoMessage = NoMessage()  # type: ignore[assignment]  # no other update sends nothing
    server: Step = Step()  # type: ignore[assignment]  # not an average of models
