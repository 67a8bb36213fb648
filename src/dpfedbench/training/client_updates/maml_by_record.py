"""MAML of clients that sum over their own examples: steps along (private) sums.

Each example's gradient is computed separately. The query gradient is of first order.
Runs that repeat released code (`Breach`) may have gradients that depend on the other
examples, and the second order (`coupled_records`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpfedbench.lazy import np, torch
from dpfedbench.training.client_updates.client_update import Setup
from dpfedbench.training.client_updates.coupled_records import (
    CoupledGradients,
    IndependentGradients,
)
from dpfedbench.training.client_updates.within_task import (
    Client,
    ClientsWithinTask,
    mean_loss,
)

if TYPE_CHECKING:
    from dpfedbench.training.client_updates.maml import QueryGradient
    from dpfedbench.training.client_updates.within_task import Examples

SUPPORT = "support-gradient-sum"
QUERY = "client-query-gradient-sum"
SUPPORT_SET = "support set"
QUERY_SET = "query set"
"""Disjoint parts of a client's examples, which these sums read."""


class MamlByRecord(ClientsWithinTask):
    """MAML with (private) support steps, then the query gradient.

    The client or the server sums the query examples' gradients.
    """

    def __init__(self, update: QueryGradient, setup: Setup) -> None:
        run = setup.run
        trains = setup.weights is not None  # an audit draws its gradients
        self._second_order = trains and update.order == 2
        self._by_server = update.by_server(run)
        query = run.task.ways * run.clients.query_per_class
        make: Any = None
        if trains and not run.model.record_level and setup.net.mixes_records:
            make = CoupledGradients
        elif self._second_order:
            make = IndependentGradients
        super().__init__(
            setup,
            update.samplers(run, 0),
            contributions_per_client=query if self._by_server else 1,
            make=make,
        )
        self._update = update
        adapted = update.adapted(setup.net)
        self._moved = slice(None) if adapted is None else setup.net.mask(*adapted)

    def client(
        self,
        worker: Any,
        theta: np.ndarray,
        client: int,
        index: int,
        held: Any,
        out: torch.Tensor,
    ) -> float:
        support, query = held
        sums = Client(self, index, client)
        adapted = theta.copy()
        path = list[np.ndarray]()
        for step in range(self._update.inner_steps):
            path.append(adapted.copy())
            mean, _ = sums.mean(SUPPORT, adapted, support, worker, step)
            rate = np.float32(self._update.inner_rate)
            adapted[self._moved] -= rate * mean[self._moved]
        if self._by_server:
            losses = worker.record_gradients(adapted, *query, out)
        else:
            mean, losses = sums.mean(QUERY, adapted, query, worker)
            out[0] = torch.from_numpy(mean)
        if self._second_order:
            out.copy_(self._through_steps(out, path, support, worker))
        return mean_loss(losses)

    def _through_steps(
        self,
        rows: torch.Tensor,
        path: Sequence[np.ndarray],
        support: Examples,
        worker: Any,
    ) -> torch.Tensor:
        """Return the rows [m, d] carried back through the support steps."""
        mechanism = self.mechanisms[SUPPORT]
        threshold = mechanism.states[0]["threshold"]
        clipped = [(slice(0, self.dimension), threshold)]
        if mechanism.groups is not None:
            thresholds = mechanism.groups.thresholds(threshold)
            clipped = list(zip(mechanism.groups.slices, thresholds, strict=True))
        share = self._update.inner_rate / float(mechanism.sampler["cohort"])
        for theta in reversed(path):
            moved = torch.zeros_like(rows)
            moved[:, self._moved] = rows[:, self._moved]
            rows = rows - share * worker.clipped_product(
                theta, *support, moved, clipped
            )
        return rows
