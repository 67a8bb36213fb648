"""MAML of clients that sum over their own examples: steps along (private) sums.

Each example's gradient is computed separately, and the query gradient is of first
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dpfedbench.lazy import np, torch
from dpfedbench.training.client_updates.client_update import Setup
from dpfedbench.training.client_updates.within_task import (
    Client,
    ClientsWithinTask,
    measured,
)
from dpsum.sampling import Sampler

if TYPE_CHECKING:
    from dpfedbench.method import Method
    from dpfedbench.models.net import Net

SUPPORT = "support-gradient-sum"
QUERY = "client-query-gradient-sum"


class SupportSteps(Protocol):
    """Settings of a client update that adapts to a support set."""

    @property
    def inner_steps(self) -> int: ...
    @property
    def inner_rate(self) -> float: ...
    @property
    def order(self) -> int: ...

    def by_server(self, run: Method) -> bool:
        """Return whether the server sums single query examples, and not clients."""

    def samplers(self, run: Method, records: int) -> dict[str, Sampler]:
        """Return the sampler of the examples of each sum."""

    def adapted_tensors(self, setup: Setup) -> Sequence[str] | None:
        """Return the names of the tensors that steps change; None: all."""


class MamlByRecord(ClientsWithinTask):
    """MAML of first order: (private) support steps, then the query gradient.

    The client or the server sums the query examples' gradients.
    """

    def __init__(self, update: SupportSteps, setup: Setup) -> None:
        run = setup.run
        self._by_server = update.by_server(run)
        query = run.task.ways * run.clients.query_per_class
        super().__init__(
            setup,
            update.samplers(run, 0),
            contributions_per_client=query if self._by_server else 1,
        )
        self._update = update
        self._moved = coordinates_of(setup.net, update.adapted_tensors(setup))

    def client(
        self,
        worker: Any,
        theta: np.ndarray,
        client: int,
        index: int,
        held: Any,
        out: torch.Tensor,
    ) -> Sequence[float]:
        (support, query) = held
        sums = Client(self, index, client)
        adapted = theta.copy()
        for step in range(self._update.inner_steps):
            mean, _ = sums.mean(SUPPORT, adapted, support, worker, step)
            adapted[self._moved] -= (
                np.float32(self._update.inner_rate) * mean[self._moved]
            )
        if self._by_server:
            return measured(worker, adapted, query, out).mean(axis=0).tolist()
        mean, measures = sums.mean(QUERY, adapted, query, worker)
        out[0] = torch.from_numpy(mean)
        return measures.mean(axis=0).tolist()


def coordinates_of(net: Net, names: Sequence[str] | None) -> slice | np.ndarray:
    """Return the coordinates of the named tensors, or of all tensors for None."""
    if names is None:
        return slice(None)
    marks = [
        np.full(size, name in names)
        for name, size in zip(net.tensor_names, net.sizes, strict=True)
    ]
    return np.concatenate(marks)
