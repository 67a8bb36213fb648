"""Fine-tuning of the server's model on each client (Yu et al., Salvaging Federated
Learning by Local Adaptation, 2020).

Clients train by FedAvg (McMahan et al. 2017, Algorithm 1) or DP-FedAvg, and send the
same message. After the last round each client takes

    w_k <- w_k - r grad F_k(w_k),    from w_k = w_T,

on its own training records, and keeps w_k. A client's fine-tuned model follows from the
releases and from the client's own records, and never leaves it: against everyone else
the account of the rounds covers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.config.part import setting
from dpfedbench.training.client_updates.model_difference import ModelDifference

if TYPE_CHECKING:
    from dpfedbench.lazy import torch
    from dpfedbench.training.client_updates.local_model import LocalClient, LocalModel


class FineTuned(ModelDifference):
    """The model difference; clients use the server's model after steps of their own."""

    kind: Literal["fine-tuned"] = "fine-tuned"  # type: ignore[assignment]  # each kind has its name

    tuning_steps: int = setting(
        10,
        ge=0,
        le=100_000,
        doc="steps from the last model, each along the gradient of all of the"
        " client's records",
    )
    tuning_rate: float = setting(0.1, gt=0, le=1e6, doc="learning rate of these steps")

    def personal_model(self, model: LocalModel, client: LocalClient) -> torch.Tensor:
        assert client.records is not None
        weights = model.weights
        for _ in range(self.tuning_steps):
            gradient = model.gradient(weights, client.records)
            weights.add_(gradient, alpha=-self.tuning_rate)
        return weights
