"""The "update" of McMahan et al. (Learning Differentially Private Recurrent Language
Models, 2018).

With the server's clipping and private sum it is DP-FedAvg, whose unit is the client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.config.rules import Rule
from dpfedbench.parts.optimizers.optimizer import (
    OPTIMIZER_WITHOUT_NOISE,
    Optimizer,
    Sgd,
)
from dpfedbench.training.client_updates.client_update import ClientUpdate

if TYPE_CHECKING:
    import torch

    from dpfedbench.training.client_updates.local_model import LocalClient, LocalModel


class DifferenceUpdate(ClientUpdate):
    """Base of updates that send the model that a client received less the model after
    its local steps.

    `fedavg` and `dp-fedavg` take all of them, also a plugin's.
    """

    client_data = "records"
    sends = "model-difference-sum"


class ModelDifference(DifferenceUpdate):
    """The model that a client received less the model after its local steps.

    Each step uses all of the client's records. The optimiser starts anew in every
    round.
    """

    kind: Literal["model-difference"] = "model-difference"
    any_size = True
    keeps_state = False

    inner_steps: int = setting(
        5,
        ge=1,
        le=100_000,
        doc="local steps, along the mean gradient of all the client's records",
    )
    inner_rate: float = setting(
        0.1, gt=0, le=1e6, doc="learning rate of the local steps"
    )
    optimizer: Optimizer = setting(Sgd(), doc="optimiser of the local steps")

    rules: ClassVar[tuple[Rule, ...]] = (OPTIMIZER_WITHOUT_NOISE,)

    def local_gradient(
        self, gradient: torch.Tensor, model: torch.Tensor, start: torch.Tensor
    ) -> torch.Tensor:
        """Return the gradient that a local step follows.

        Override this in an update with another objective.

        Args:
            gradient: float32 [d], the mean gradient of the client's records at `model`;
                it may be written to.
            model: float32 [d], the client's model before the step.
            start: float32 [d], the model that the client received.
        """
        return gradient

    def contributions(
        self, model: LocalModel, cohort: Sequence[LocalClient], index: int
    ) -> Iterator[Any]:
        for client in cohort:
            yield model.weights - self.local_model(model, client)

    def local_model(self, model: LocalModel, client: LocalClient) -> torch.Tensor:
        """Return a client's weights after its local steps."""
        assert client.records is not None
        start = model.weights
        weights = model.weights
        state = self.optimizer.begin(weights)
        for _ in range(self.inner_steps):
            gradient = model.gradient(weights, client.records)
            followed = self.local_gradient(gradient, weights, start)
            self.optimizer.step(weights, followed, state, self.inner_rate)
        return weights
