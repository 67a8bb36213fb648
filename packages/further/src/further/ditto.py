"""Ditto (Li et al., Ditto: Fair and Robust Federated Learning Through Personalization,
2021).

The server's model is that of FedAvg or DP-FedAvg. Beside it each client k keeps a model
v_k of its own. In each of its rounds it takes s steps on

    h_k(v; w_t) = F_k(v) + lambda/2 ||v - w_t||^2

from v_k (Algorithm 1: v_k <- v_k - r (grad F_k(v_k) + lambda (v_k - w_t))), and K steps
on F_k from w_t, whose model difference it sends. In its first round it starts with v_k =
w_t. After the last round it takes the steps of v_k towards the last model once more.

The message follows from w_t and the client's records alone. v_k never leaves the
client: it follows from the releases and the client's own records, so the account of
DP-FedAvg covers all that others see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.config.part import setting
from dpfedbench.training.client_updates.model_difference import ModelDifference

if TYPE_CHECKING:
    from dpfedbench.lazy import torch
    from dpfedbench.training.client_updates.local_model import LocalClient, LocalModel


class Ditto(ModelDifference):
    """Ditto: the model difference, and a personal model near the server's."""

    kind: Literal["ditto"] = "ditto"  # type: ignore[assignment]  # each kind has its name
    keeps_state = True

    penalty: float = setting(
        0.1,
        ge=0,
        le=1e6,
        doc="lambda: weight of the term lambda/2 ||v - w_t||^2; 0: v is trained alone",
    )
    personal_steps: int = setting(
        5, ge=1, le=100_000, doc="s: steps of the personal model in a round"
    )
    personal_rate: float = setting(
        0.1, gt=0, le=1e6, doc="learning rate of these steps"
    )

    def contributions(
        self, model: LocalModel, cohort: Sequence[LocalClient], index: int
    ) -> Iterator[Any]:
        for client in cohort:
            client.state["personal"] = self.personal_model(model, client)
            yield model.weights - self.local_model(model, client)

    def personal_model(self, model: LocalModel, client: LocalClient) -> torch.Tensor:
        assert client.records is not None
        server = model.weights
        weights = client.state.get("personal", server).clone()
        for _ in range(self.personal_steps):
            gradient = model.gradient(weights, client.records)
            gradient.add_(weights - server, alpha=self.penalty)
            weights.add_(gradient, alpha=-self.personal_rate)
        return weights
