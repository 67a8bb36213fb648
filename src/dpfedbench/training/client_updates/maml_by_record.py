"""MAML of clients that sum over their own examples: steps along (private) sums.

Each example's gradient is computed separately. The query gradient is of first order.
Runs that repeat released code (`Breach`) may have gradients that depend on the other
examples, and the second order (`coupled_records`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dpfedbench.lazy import np, torch
from dpfedbench.training.client_updates.coupled_records import (
    CoupledGradients,
    IndependentGradients,
)
from dpfedbench.training.client_updates.within_task import (
    ClientsWithinTask,
    Turn,
    create_mechanisms,
    mean_loss,
)
from dpfedbench.training.clients import Setup

if TYPE_CHECKING:
    from dpfedbench.models.net import Net
    from dpfedbench.run import Run
    from dpsum.sampling import Sampler

SUPPORT = "support-gradient-sum"
QUERY = "client-query-gradient-sum"
SUPPORT_SET = "support set"
QUERY_SET = "query set"
"""Disjoint parts of a client's examples, which these sums read."""


class QuerySettings(Protocol):
    """Settings of an update that adapts to a support set (`maml.QueryGradient`)."""

    inner_steps: int
    inner_rate: float
    order: Literal[1, 2]

    def by_server(self, run: Run) -> bool:
        """Return whether the server sums single query examples, and not clients."""

    def samplers(self, run: Run, records: int) -> dict[str, Sampler]:
        """Return the sampler of each sum that a client takes itself."""

    def adapted(self, net: Net) -> Sequence[str] | None:
        """Return the tensors that adaptation to a task changes; None: all."""


def create_clients(update: QuerySettings, setup: Setup) -> ClientsWithinTask:
    """Return clients with (private) support steps, and then the query gradient.

    The client or the server sums the query examples' gradients.
    """
    run = setup.run
    trains = setup.weights is not None  # an audit draws its gradients
    make: Any = None
    if trains and not run.model.record_level and setup.net.mixes_records:
        make = CoupledGradients
    elif trains and update.order == 2:
        make = IndependentGradients
    adapted = update.adapted(setup.net)
    return ClientsWithinTask(
        setup,
        create_mechanisms(setup, update.samplers(run, 0)),
        functools.partial(
            _write_query_gradient,
            update,
            moved=slice(None) if adapted is None else setup.net.mask(*adapted),
            by_server=update.by_server(run),
            second_order=trains and update.order == 2,
        ),
        contributions_per_client=(
            run.task.ways * run.clients.query_per_class if update.by_server(run) else 1
        ),
        make=make,
    )


def _write_query_gradient(
    update: QuerySettings,
    turn: Turn,
    worker: Any,
    out: torch.Tensor,
    *,
    moved: np.ndarray | slice,
    by_server: bool,
    second_order: bool,
) -> float:
    """Write a client's query gradient to `out`, and return the mean query loss."""
    rate = np.float32(update.inner_rate)
    adapted = turn.theta.copy()
    path = list[np.ndarray]()
    for step in range(update.inner_steps):
        path.append(adapted.copy())
        mean, _ = turn.mean(SUPPORT, adapted, turn.support, worker, step)
        adapted[moved] -= rate * mean[moved]
    if by_server:
        losses = worker.record_gradients(adapted, *turn.query, out)
    else:
        mean, losses = turn.mean(QUERY, adapted, turn.query, worker)
        out[0] = torch.from_numpy(mean)
    if second_order:
        out.copy_(_carry_back(out, path, turn, worker, update.inner_rate, moved))
    return mean_loss(losses)


def _carry_back(
    rows: torch.Tensor,
    path: Sequence[np.ndarray],
    turn: Turn,
    worker: Any,
    rate: float,
    moved: np.ndarray | slice,
) -> torch.Tensor:
    """Return rows [m, d] carried back through the support steps.

    Args:
        rows: query gradients at the adapted weights.
        path: weights before each step.
        turn: the client.
        worker: gradients of its examples (`coupled_records`).
        rate: rate of the steps.
        moved: coordinates that the steps move.
    """
    mechanism = turn.mechanisms[SUPPORT]
    threshold = mechanism.states[0]["threshold"]
    clipped = [(slice(0, rows.shape[1]), threshold)]
    if mechanism.groups is not None:
        thresholds = mechanism.groups.thresholds(threshold)
        clipped = list(zip(mechanism.groups.slices, thresholds, strict=True))
    share = rate / float(mechanism.sampler["cohort"])
    for theta in reversed(path):
        directions = torch.zeros_like(rows)
        directions[:, moved] = rows[:, moved]
        rows = rows - share * worker.clipped_product(
            theta, *turn.support, directions, clipped
        )
    return rows
