"""The "update" of McMahan et al. (Learning Differentially Private Recurrent Language
Models, 2018).

Clipped and summed by the server it is DP-FedAvg, whose unit is the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from dpfedbench.lazy import np, torch
from dpfedbench.parts.client_updates.client_update import (
    ClientByClient,
    Clients,
    ClientUpdate,
    Setup,
)
from dpfedbench.parts.optimizers.optimizer import Optimizer, Sgd
from dpfedbench.settings.part import setting
from dpfedbench.settings.run import Run

# records whose gradients are added up at once: they stay in the cache; part of what a
# result's bits are
_PIECE = 8


class ModelDifference(ClientUpdate):
    """The model that a client got less the one that its steps make of it, each on all
    of its records.

    The optimiser starts anew in every round.
    """

    kind: Literal["model-difference"] = "model-difference"
    client_data = "records"
    sends = "model-difference-sum"
    any_size = True
    keeps_state = False

    inner_steps: int = setting(
        5,
        ge=1,
        le=100_000,
        doc="steps, each along the mean gradient of all of the client's records",
    )
    inner_rate: float = setting(0.1, gt=0, le=1e6, doc="their learning rate")
    optimizer: Optimizer = setting(Sgd(), doc="what takes them")

    def check(self, run: Run) -> None:
        self.optimizer.refuse_untold("client_update")

    def local_gradient(
        self, gradient: torch.Tensor, model: torch.Tensor, start: torch.Tensor
    ) -> torch.Tensor:
        """Return the gradient that a local step follows; an update of another objective
        overrides this.

        Args:
            gradient: float32 [d], the mean gradient of the client's records at `model`;
                it may be written to.
            model: float32 [d], the client's model before the step.
            start: float32 [d], the model that the client got.
        """
        return gradient

    def clients(self, setup: Setup) -> Clients:
        return ModelDifferenceClients(self, setup)


class ModelDifferenceClients(ClientByClient):
    """Clients that send what their steps make of the model that they got.

    Losses and accuracies are the broadcast model's on each client's records.
    """

    def __init__(self, update: ModelDifference, setup: Setup) -> None:
        dimension = setup.net.dimension
        self._update = update
        super().__init__(
            setup,
            lambda made: (made, torch.empty((_PIECE, dimension), device=made.device)),
            device="cpu",
        )

    def followed(
        self,
        client: int,
        gradient: torch.Tensor,
        model: torch.Tensor,
        start: torch.Tensor,
    ) -> torch.Tensor:
        """Return the gradient that a client's step follows; other arguments as of
        `ModelDifference.local_gradient`.
        """
        return self._update.local_gradient(gradient, model, start)

    def client(
        self,
        worker: Any,
        theta: np.ndarray,
        client: int,
        index: int,
        held: Any,
        out: torch.Tensor,
    ) -> Sequence[float]:
        images = self.setup.held.images[client]
        labels = self.setup.held.labels[client]
        start = torch.from_numpy(theta)
        model = torch.from_numpy(theta.copy())
        gradients, room = worker
        state = self._update.optimizer.begin(model)
        measured = gradients.evaluate(theta, images, labels)
        for _ in range(self._update.inner_steps):
            total = gradients.added(model.numpy(), images, labels, room)
            mean = torch.from_numpy((total / len(labels)).astype(np.float32))
            followed = self.followed(client, mean, model, start)
            self._update.optimizer.step(model, followed, state, self._update.inner_rate)
        torch.sub(start, model, out=out[0])
        return measured.loss, measured.accuracy
