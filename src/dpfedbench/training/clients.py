"""Clients of a run: their base class, and everything that they are made from."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dpfedbench.lazy import np
from dpfedbench.parts.budget import OwnSum
from dpfedbench.training.distributed import Processes, Stream
from dpfedbench.training.history import Row
from dpsum.sampling import Sampler
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.models.choose import Choice
    from dpfedbench.models.gradients import Gradients
    from dpfedbench.models.net import Net
    from dpfedbench.models.shared_coordinates import SharedCoordinates
    from dpfedbench.models.threads import Workers
    from dpfedbench.run import Run
    from dpsum.clipping import ClippingRule
    from dpsum.group_clipping import CoordinateGroups
    from dpsum.mechanism import Mechanism

Worker = TypeVar("Worker")

Examples = tuple["np.ndarray", "np.ndarray"]
"""Inputs [n, ...] and labels int64 [n]."""

CHUNK_PER_THREAD = 8
"""Clients that a thread computes, one after another, before their messages are added
up.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything that the clients of a run are made from.

    An audit puts its own data and gradients here.

    Attributes:
        run: the run of the clients.
        net: the model.
        held: data of the clients: `data.holdings.Tasks`, `Records`, or a class like
            them.
        gradients: implementation of the model's gradients.
        client_sums: sums that each client takes over its own records; empty for most
            methods.
        create_mechanism: creates the `dpsum.Mechanism` of a sum of this run.
        threads: CPU threads; they change no bit of the result.
        first_threshold: first clipping threshold, where another run gives it.
        processes: the processes that train the run together.
        weights: initial weights of the training, float32 [d]; None: the caller does not
            train.
        shared: coordinates that clients share with the server.
    """

    run: Run
    net: Net
    held: Any
    gradients: Choice
    client_sums: Sequence[SumSpec]
    create_mechanism: Callable[..., Mechanism]
    shared: SharedCoordinates
    threads: int = 1
    first_threshold: float | None = None
    processes: Processes = dataclasses.field(default_factory=Processes)
    weights: np.ndarray | None = None

    def workers(self, make: Callable[[Gradients], Worker]) -> Workers[Worker]:
        """Return threads, each with a worker that `make` creates from gradients."""
        from dpfedbench.models.threads import Workers  # imports torch

        return Workers(self.gradients, make, threads=self.threads)

    def calibrated_client_sums(
        self, samplers: Mapping[str, Sampler]
    ) -> dict[str, SumSpec]:
        """Return the few-shot clients' own sums by name, with their noise multiplier.

        Args:
            samplers: sampler of each of the client's sums, by name.

        Raises:
            BenchError: no noise meets the epsilon.
        """
        specs = {spec.name: spec for spec in self.client_sums}
        if not specs:
            return {}
        settings = self.client_sums[0].within_task
        assert isinstance(settings, OwnSum)
        of_own_sums = {name: samplers[name] for name in specs}
        multiplier = settings.noise_multiplier(of_own_sums, self.run.claims)
        return {
            name: dataclasses.replace(
                spec,
                noise=dataclasses.replace(spec.private_noise, multiplier=multiplier),
            )
            for name, spec in specs.items()
        }

    def groups_of(self, rule: ClippingRule | None) -> CoordinateGroups | None:
        """Return the groups of coordinates that a rule clips; None: all together."""
        if rule is None or rule.groups == "all":
            return None
        return self.net.coordinate_groups(rule.groups, rule.noise_by_group)


class Clients:
    """Clients of one run.

    Attributes:
        contributions_per_client: number of contributions of each client to the server's sum.
        unit: unit of the clients' work, "clients" or "records".
        divides: whether `contributions` itself divides the clients among processes.
            Then every process passes it the whole cohort, and the first process gets
            all contributions; else every process passes it a part of the cohort.
        has_personal_models: whether `personal_weights` gives clients models of their
            own.
    """

    contributions_per_client: int = 1
    unit: str = "clients"
    divides: bool = False
    has_personal_models: bool = False

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep a state of their own from one of their rounds to the
        next; by default they do if the class has a `state`.
        """
        return type(self).state is not Clients.state

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Yield the messages of the clients of round `index`, given the weights [d]."""
        raise NotImplementedError

    def personal_weights(
        self, theta: np.ndarray, numbers: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield the weights [d] that each of the given clients uses, in their order.

        By default they are the server's weights `theta`.
        """
        for _ in numbers:
            yield theta

    def receive_broadcast(self, means: Sequence[np.ndarray]) -> None:
        """Receive the server's further releases (SCAFFOLD's control variate).

        Args:
            means: each release, float64 [d], divided by the number of all clients.
        """

    def row(self) -> Row | None:
        """Return the round's row of the history; None: the server's row is used."""
        return None

    def work(self, cohort: np.ndarray) -> int | None:
        """Return the work of the round, counted in `unit`.

        None stands for the number of clients that took part, or were expected to.
        """
        return None

    def state(self) -> Any:
        """Return everything that a restart needs.

        All processes call this at the same time; the result of the first process is
        kept.
        """
        return None

    def restore(self, state: Any) -> None:
        """Restore the state that `state` returned."""


def task_examples(held: Any, ids: np.ndarray) -> Iterator[tuple[Examples, Examples]]:
    """Return the support and the query examples of few-shot clients."""
    batch = held.gather(ids)
    support = zip(batch.support_x, batch.support_y, strict=True)
    query = zip(batch.query_x, batch.query_y, strict=True)
    return zip(support, query, strict=True)


def each_holder(
    mechanism: Mechanism,
    processes: Processes,
    pool: concurrent.futures.Executor,
    take: Callable[[int], Any],
) -> list[Any]:
    """Return the results of `take` for each holder of a mechanism.

    Each process computes its own holders, each of which takes a sum in the mechanism.
    Afterwards every process has the releases and the thresholds of all holders.
    """
    own_holders = processes.share(mechanism.holders)
    results = dict(zip(own_holders, pool.map(take, own_holders), strict=True))
    states = {
        holder: mechanism.states[holder] for holder in own_holders if mechanism.states
    }
    parts = processes.all_gather((results, mechanism.finished, states))
    mechanism.finished = [sum_ for _, finished, _ in parts for sum_ in finished]
    mechanism.finished.sort(key=lambda sum_: (sum_.holder, sum_.step))
    for part_results, _, moved in parts:
        results |= part_results
        for holder, state in moved.items():
            mechanism.states[holder] = state
    return [results[holder] for holder in range(mechanism.holders)]
