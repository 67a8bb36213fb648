"""The "update" of McMahan et al. (Learning Differentially Private Recurrent Language Models, 2018).

Clipped and summed by the server it is DP-FedAvg, whose unit is the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.lazy import np, torch
from dpfedbench.parts.client_updates.client_update import Clients, ClientUpdate, Setup, Stream
from dpfedbench.parts.optimizers.optimizer import Optimizer
from dpfedbench.parts.optimizers.sgd import Sgd
from dpfedbench.settings.part import setting

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run

CHUNK_PER_THREAD = 8
_PIECE = 8  # records whose gradients are added up at once: they stay in the cache; part of what a result's bits are


class ModelDifference(ClientUpdate):
    """The model that a client got less the one that its steps make of it, each on all of its records.

    The optimiser starts anew in every round.
    """

    kind: Literal["model-difference"] = "model-difference"
    client_data = "records"
    sends = "model-difference-sum"
    any_size = True

    inner_steps: int = setting(
        5, ge=1, le=100_000, doc="steps, each along the mean gradient of all of the client's records"
    )
    inner_rate: float = setting(0.1, gt=0, le=1e6, doc="their learning rate")
    optimizer: Optimizer = setting(Sgd(), doc="what takes them")

    def check(self, run: Run) -> None:
        self.optimizer.refuse_untold("client_update")

    def local_gradient(self, gradient: torch.Tensor, model: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """What a local step follows, for an update of another objective to change.

        Args:
            gradient: float32 [d], the mean gradient of the client's records at `model`; it may be written to.
            model: float32 [d], the client's model before the step.
            start: float32 [d], the model that the client got.
        """
        return gradient

    def clients(self, setup: Setup) -> Clients:
        return Trained(self, setup)


class Trained(Clients):
    """Clients that send what their steps make of the model that they got.

    Args:
        update: what they compute.
        setup: of the run.
    """

    def __init__(self, update: ModelDifference, setup: Setup) -> None:
        self._update, self._held, self._dimension = update, setup.held, setup.net.dimension
        self._workers = setup.workers(
            lambda gradients: (gradients, torch.empty((_PIECE, self._dimension), device=gradients.device))
        )

    def contributions(self, theta: np.ndarray, cohort: np.ndarray, index: int) -> Stream:
        """Model differences; losses and accuracies (0 to 1) are the broadcast model's on each client's records."""
        chunk = CHUNK_PER_THREAD * self._workers.count
        buffer = torch.empty((chunk, self._dimension))
        rows = buffer.numpy()
        with self._workers.running() as pool:
            for start in range(0, len(cohort), chunk):
                ids = cohort[start : start + chunk]
                measures = np.array(list(pool.map(self._difference, [theta] * len(ids), ids, rows))).reshape(-1, 2)
                yield buffer[: len(ids)], measures[:, 0], measures[:, 1]

    def followed(self, client: int, gradient: torch.Tensor, model: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """What a client's step follows; other arguments as of `ModelDifference.local_gradient`."""
        return self._update.local_gradient(gradient, model, start)

    def _difference(self, theta: np.ndarray, client: int, out: np.ndarray) -> tuple[float, float]:
        """Write theta less the model that the client's steps make of it to `out` [d]."""
        images, labels = self._held.images[client], self._held.labels[client]
        start, model = torch.from_numpy(theta), torch.from_numpy(theta.copy())
        state = self._update.optimizer.begin(model)
        with self._workers.worker() as (gradients, room):
            measured = gradients.evaluate(theta, images, labels)
            for _ in range(self._update.inner_steps):
                total = gradients.added(model.numpy(), images, labels, room)
                mean = torch.from_numpy((total / len(labels)).astype(np.float32))
                followed = self.followed(client, mean, model, start)
                self._update.optimizer.step(model, followed, state, self._update.inner_rate)
        np.subtract(theta, model.numpy(), out=out)
        return measured.loss, measured.accuracy
