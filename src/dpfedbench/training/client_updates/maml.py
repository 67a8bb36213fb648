"""The MAML client update: a client's query gradient after adapting to its support set.

    theta_0 = theta;  theta_{k+1} = theta_k - rate * grad L_support(theta_k);  contribution = d/dtheta L_query(theta_K)

(DP-FedMeta, Algorithm 1 and eq. 3-5, with the mean of the losses; Finn et al. 2017.)
`models.meta_gradient` implements the recursion. A client that sums over its own
examples computes each example's gradient separately and to first order: the second
order would carry raw support examples past the noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.breach import Breach
from dpfedbench.config.part import setting
from dpfedbench.config.rules import Rule
from dpfedbench.lazy import np, torch
from dpfedbench.training.client_updates.client_update import ClientUpdate
from dpfedbench.training.client_updates.coupled_records import (
    CoupledGradients,
    clipped_product,
)
from dpfedbench.training.client_updates.within_task import (
    ClientsWithinTask,
    Turn,
    create_mechanisms,
    mean_loss,
    within_task,
)
from dpfedbench.training.clients import Clients, Setup
from dpfedbench.training.distributed import Stream
from dpsum.sampling import Sampler

if TYPE_CHECKING:
    from dpfedbench.data.partition import TaskBatch
    from dpfedbench.models.net import Net
    from dpfedbench.run import Run

SUPPORT = "support-gradient-sum"
QUERY = "client-query-gradient-sum"
SUPPORT_SET = "support set"
QUERY_SET = "query set"
"""Disjoint parts of a client's examples, which these sums read."""


class QueryGradient(ClientUpdate):
    """Base of the updates that adapt to a support set and send the gradient of the
    query set's loss.

    The gradient is of first or second order, with the parts of MAML++ (Antoniou et al.
    2019) that are switched on. The inner steps change all weights, unless an update
    restricts them (`adapted`).
    """

    client_data = "tasks"
    sends = "query-gradient-sum"
    keeps_state = False
    couples_records = True

    inner_steps: int = setting(
        2, ge=1, le=100_000, doc="steps on the support set", paper="5"
    )
    inner_rate: float = setting(
        0.4,
        gt=0,
        le=1e6,
        doc="learning rate of the inner steps, eta_1",
        paper="0.1",
    )
    order: Literal[1, 2] = setting(
        2,
        doc="2: exact meta-gradient; 1: the adapted weights count as constants",
        paper="2",
    )
    learnable_rates: bool = setting(
        False,
        doc=(
            "a rate for each inner step and tensor, learnt with the weights"
            " (MAML++); a meta-test with another optimiser, minibatches or a"
            " schedule does not use them"
        ),
        paper="released code: true",
    )
    multi_step_rounds: int = setting(
        0,
        ge=0,
        doc="rounds in which the query loss counts after each inner step (MAML++)",
        paper="released code: 10 epochs",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda update, run: (
                run.computes_within_records
                and (update.learnable_rates or update.multi_step_rounds)
            ),
            "client_update.learnable_rates and multi_step_rounds need a model"
            " that normalises by statistics of the whole batch: set them to"
            " false and 0",
        ),
    )

    def breaches(self, run: Run) -> tuple[Breach, ...]:
        if self.order == 1 or not run.computes_within_records:
            return ()
        breach = Breach(
            unit="record",
            refusal=(
                "client_update.order is 2, but the client sums over its own records:"
                " the second order carries the support set's Hessian into every query"
                " gradient, which no record-level noise covers; set order to 1"
            ),
            reason=(
                "the second order carries the support set's Hessian into every query"
                " gradient past the noise of the support step"
            ),
        )
        return (breach,)

    @property
    def mixes_records(self) -> bool:
        return self.order == 2 or self.learnable_rates or self.multi_step_rounds > 0

    @staticmethod
    def by_server(run: Run) -> bool:
        """Return whether the server sums single query examples, and not clients."""
        return run.server_sum.unit == "record"

    def step_weights(self, index: int) -> np.ndarray | None:
        """Return the weight of the query loss after each inner step in round `index`.

        At first all weights are equal. Those before the last then fall linearly to 3 %
        of their first value (as in the code of MAML++).

        Args:
            index: number of the round, from 0.

        Returns:
            Weights [inner_steps]; None: the loss counts after the last step alone.
        """
        if index >= self.multi_step_rounds:
            return None
        share = max(1 - index / self.multi_step_rounds, 0.03) / self.inner_steps
        weights = np.full(self.inner_steps, share)
        weights[-1] = 1 - share * (self.inner_steps - 1)
        return weights

    def net(self, net: Net) -> Net:
        if self.learnable_rates:
            return net.with_rates(self.inner_steps, self.inner_rate)
        return net

    def samplers(self, run: Run, records: int) -> dict[str, Sampler]:
        support, query = (
            run.task.ways * n
            for n in (run.clients.support_per_class, run.clients.query_per_class)
        )
        samplers = {SUPPORT: within_task(run, support, steps=self.inner_steps)}
        if not self.by_server(run):
            samplers[QUERY] = within_task(run, query, steps=1)
        return samplers

    def clients(self, setup: Setup) -> Clients:
        run = setup.run
        if run.computes_within_records:
            return _clients_by_record(self, setup)
        return WholeTasks(self, setup)


class Maml(QueryGradient):
    """MAML: the inner steps change all weights."""

    kind: Literal["maml"] = "maml"


class WholeTasks(Clients):
    """Clients whose gradients are those of whole tasks, computed for a chunk of tasks
    at once.
    """

    def __init__(self, update: QueryGradient, setup: Setup) -> None:
        from dpfedbench.models.meta_gradient import MetaGradient

        self._update = update
        self._held = setup.held
        self._dimension = setup.net.dimension
        adapted = update.adapted(setup.net)
        self._workers = setup.workers(
            lambda gradients: MetaGradient(
                gradients,
                steps=update.inner_steps,
                rate=update.inner_rate,
                order=update.order,
                adapted=adapted,
            )
        )

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Yield query gradients, with losses on the query sets.

        A yielded tensor is overwritten two chunks later.
        """
        weights = self._update.step_weights(index)
        workers = self._workers
        chunk = workers.chunk
        shape = (chunk, self._dimension)
        buffers = [torch.empty(shape, device=workers.device) for _ in range(2)]

        def computed(tasks: TaskBatch, out: torch.Tensor, which: slice) -> np.ndarray:
            with workers.worker() as worker:
                return worker.contribution(
                    theta,
                    tasks.support_x[which],
                    tasks.support_y[which],
                    tasks.query_x[which],
                    tasks.query_y[which],
                    out[which],
                    weights,
                )

        with workers.running() as pool:
            # The next chunk is computed while the caller adds up the one before.
            waiting = list[tuple[torch.Tensor, Iterator[np.ndarray]]]()
            for number, start in enumerate(range(0, len(cohort), chunk)):
                ids = cohort[start : start + chunk]
                out = buffers[number % 2][: len(ids)]
                compute = functools.partial(computed, self._held.gather(ids), out)
                waiting.append((out, pool.map(compute, workers.split(len(ids)))))
                if number:
                    before, losses = waiting.pop(0)
                    yield before, np.concatenate(list(losses))
            for before, losses in waiting:
                yield before, np.concatenate(list(losses))


def _clients_by_record(update: QueryGradient, setup: Setup) -> ClientsWithinTask:
    """Return clients with (private) support steps, and then the query gradient.

    Each example's gradient is computed separately. The client or the server sums the
    query examples' gradients. Runs that repeat released code (`Breach`) may have
    gradients that depend on the other examples, and the second order
    (`coupled_records`).
    """
    run = setup.run
    trains = setup.weights is not None  # an audit draws its gradients
    coupled = trains and not run.model.record_level and setup.net.mixes_records
    by_server = update.by_server(run)
    adapted_tensors = update.adapted(setup.net)
    moved: np.ndarray | slice = slice(None)
    if adapted_tensors is not None:
        moved = setup.net.mask(*adapted_tensors)

    def write(turn: Turn, worker: Any, out: torch.Tensor) -> float:
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
        if trains and update.order == 2:
            out.copy_(_carry_back(out, path, turn, worker, update.inner_rate, moved))
        return mean_loss(losses)

    return ClientsWithinTask(
        setup,
        create_mechanisms(setup, update.samplers(run, 0)),
        write,
        contributions_per_client=(
            run.task.ways * run.clients.query_per_class if by_server else 1
        ),
        make=CoupledGradients if coupled else None,
    )


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
        worker: gradients of its examples.
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
    product: Callable[..., torch.Tensor] = functools.partial(clipped_product, worker)
    if isinstance(worker, CoupledGradients):
        product = worker.clipped_product
    for theta in reversed(path):
        directions = torch.zeros_like(rows)
        directions[:, moved] = rows[:, moved]
        rows = rows - share * product(theta, *turn.support, directions, clipped)
    return rows
