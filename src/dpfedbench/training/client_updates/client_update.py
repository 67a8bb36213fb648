"""Base classes of client updates: their settings, and the clients that compute them."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dpfedbench.config.part import Part
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpfedbench.training.client_updates.local_model import (
    GRADIENTS_AT_ONCE,
    Examples,
    LocalClient,
    LocalModel,
    constant_thresholds,
)
from dpfedbench.training.distributed import Processes, Stream
from dpfedbench.training.history import Row
from dpsum import participation
from dpsum.sampling import Sampler
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.models.choose import Choice
    from dpfedbench.models.gradients import Gradients
    from dpfedbench.models.net import Net
    from dpfedbench.models.shared_coordinates import SharedCoordinates
    from dpfedbench.models.threads import Workers
    from dpfedbench.run import Run
    from dpsum.group_clipping import CoordinateGroups
    from dpsum.mechanism import Mechanism

Worker = TypeVar("Worker")

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
        plan: the participation plan.
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
    plan: participation.Participation
    shared: SharedCoordinates
    threads: int = 1
    first_threshold: float | None = None
    processes: Processes = dataclasses.field(default_factory=Processes)
    weights: np.ndarray | None = None

    def workers(self, make: Callable[[Gradients], Worker]) -> Workers[Worker]:
        """Return threads, each with a worker that `make` creates from gradients."""
        from dpfedbench.models.threads import Workers

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
        of_own_sums = {name: samplers[name] for name in specs}
        multiplier = settings.noise_multiplier(of_own_sums, self.run.claims)
        return {
            name: dataclasses.replace(
                spec, noise=dataclasses.replace(spec.noise, multiplier=multiplier)
            )
            for name, spec in specs.items()
        }

    def groups_of(self, sum_: SumSpec) -> CoordinateGroups | None:
        """Return the groups of coordinates that a sum clips; None: all together."""
        rule = sum_.clipping
        if not sum_.private or rule.groups == "all":
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
        keeps_state: whether clients keep a state of their own from one of their rounds
            to the next; None: they do if the class has a `state`.
        has_personal_models: whether `personal_weights` gives clients models of their
            own.
    """

    contributions_per_client: int = 1
    unit: str = "clients"
    divides: bool = False
    keeps_state: bool | None = None
    has_personal_models: bool = False

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


class RecordHolders(Clients):
    """Base of clients that hold records and fill the row of the history themselves."""

    unit = "records"
    divides = True

    def __init__(self) -> None:
        self._row: Row = {}

    def row(self) -> Row:
        return self._row


class SharedModelClients(RecordHolders):
    """Base of parties that share one model, and move it together in each round.

    `_state` is the state of their optimisers, which a checkpoint saves.
    """

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Yield the model that all parties have after the round, as one row."""
        model = torch.from_numpy(theta.copy())
        self._row = self.move(model, index)
        yield model[None], np.zeros(0)

    def move(self, model: torch.Tensor, index: int) -> Row:
        """Move the model [d] in place, and return the round's row of the history."""
        raise NotImplementedError

    def state(self) -> Any:
        return self._state

    def restore(self, state: Any) -> None:
        self._state = state


class CohortClients(Clients):
    """Clients of an update that defines `contributions`.

    The same process computes a client with state in all rounds, and keeps its state. A
    checkpoint has the states of all processes.
    """

    def __init__(self, update: ClientUpdate, setup: Setup) -> None:
        self._update = update
        self._setup = setup
        self._processes = setup.processes
        self._dimension = setup.net.dimension
        self._message_count = 1 + len(update.sends_too)
        self.keeps_state = update.keeps_state is not False
        self.divides = self.keeps_state
        personal_model = type(update).personal_model
        self.has_personal_models = personal_model is not ClientUpdate.personal_model
        self._states: dict[int, dict[str, Any]] = {}
        self._public_state: dict[str, Any] = {}
        self._shared = torch.from_numpy(setup.shared.mask.copy())
        self._thresholds = constant_thresholds(setup.run.sums())
        self._workers = setup.workers(self._worker)

    def _worker(self, gradients: Gradients) -> tuple[Gradients, torch.Tensor]:
        room = torch.empty((GRADIENTS_AT_ONCE, self._dimension))
        return gradients, room.to(gradients.device)

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        chunk = CHUNK_PER_THREAD * self._workers.count
        with self._workers.running() as pool:
            for start in range(0, len(cohort), chunk):
                ids = cohort[start : start + chunk]
                positions = [
                    position
                    for position, client in enumerate(ids)
                    if self._is_here(client)
                ]
                rows = torch.zeros((len(ids), self._message_count, self._dimension))
                losses = np.full(len(ids), np.nan)
                compute = functools.partial(
                    self._compute, theta, ids, index, rows, losses
                )
                list(pool.map(compute, self._pieces(positions)))
                if self.divides:
                    self._gather(positions, rows, losses)
                messages = rows.movedim(1, 0)
                if self._message_count == 1:
                    messages = messages[0]
                yield messages, losses

    def _is_here(self, client: int) -> bool:
        """Return whether this process computes a client."""
        count = self._processes.count
        return not self.divides or int(client) % count == self._processes.rank

    def _pieces(self, positions: Sequence[int]) -> list[list[int]]:
        """Return the positions in a chunk that each thread computes."""
        size = max(1, -(-len(positions) // self._workers.count))
        return [list(positions[i : i + size]) for i in range(0, len(positions), size)]

    def _gather(
        self, positions: Sequence[int], rows: torch.Tensor, losses: np.ndarray
    ) -> None:
        """Write the results of all processes to the first process's arrays."""
        here = (positions, rows[positions], losses[positions])
        for their_positions, their_rows, their_losses in self._processes.gather(here):
            rows[their_positions] = their_rows
            losses[their_positions] = their_losses

    def _compute(
        self,
        theta: np.ndarray,
        ids: np.ndarray,
        index: int,
        rows: torch.Tensor,
        losses: np.ndarray,
        positions: Sequence[int],
    ) -> None:
        """Compute the messages of some clients in this thread, and keep their states.

        Args:
            theta: weights [d].
            ids: clients of a chunk [n].
            index: number of the round.
            rows: receives their messages [n, messages, d].
            losses: receives each client's loss [n].
            positions: positions of the clients of this thread.
        """
        with self._workers.worker() as (gradients, room):
            model = self._model(theta, gradients, room)
            clients = self._clients(ids[positions])
            stream = self._update.contributions(model, clients, index)
            for position, message in zip(positions, stream, strict=True):
                rows[position] = self._checked(message)
            for position, client in zip(positions, clients, strict=True):
                self._keep(client, rows[position])
                if not self._setup.run.private:
                    # A private run publishes no losses.
                    examples = client.query or client.records
                    assert examples is not None
                    losses[position] = gradients.evaluate(theta, *examples).loss

    def _model(
        self, theta: np.ndarray, gradients: Gradients, room: torch.Tensor
    ) -> LocalModel:
        return LocalModel(
            theta,
            net=self._setup.net,
            gradients=gradients,
            room=room,
            shared=self._shared,
            thresholds=self._thresholds,
            public_state=self._public_state,
            seed=self._setup.run.stream_seed,
        )

    def _clients(self, ids: np.ndarray) -> list[LocalClient]:
        """Return clients with their examples and copies of their states."""
        held = self._setup.held
        numbers = [int(client) for client in ids]
        if self._update.client_data == "records":
            return [
                LocalClient(
                    number=number,
                    state=self._state_of(number),
                    records=(held.images[number], held.labels[number]),
                )
                for number in numbers
            ]
        return [
            LocalClient(
                number=number,
                state=self._state_of(number),
                support=support,
                query=query,
            )
            for number, (support, query) in zip(
                numbers, task_examples(held, ids), strict=True
            )
        ]

    def _state_of(self, number: int) -> dict[str, Any]:
        return {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in self._states.get(number, {}).items()
        }

    def _checked(self, message: Any) -> torch.Tensor:
        """Return a client's messages, [messages, d], after a check of their shape."""
        if self._message_count > 1 and not isinstance(message, torch.Tensor):
            message = torch.stack(list(message))
        message = torch.as_tensor(message)
        if self._message_count == 1:
            message = message[None]
        expected = (self._message_count, self._dimension)
        if tuple(message.shape) != expected:
            shape = list(expected if self._message_count > 1 else expected[1:])
            raise BenchError(
                f"contributions of client_update.kind {self._update.kind} yields an"
                f" array {list(message.shape[-len(shape) :])} for a client, not"
                f" {shape}: yield the weights of the whole model; the loop selects"
                " the shared ones"
            )
        return message

    def _keep(self, client: LocalClient, messages: torch.Tensor) -> None:
        """Keep a client's state, unless its message is not finite.

        Such a message counts as zero.
        """
        kind = self._update.kind
        if client.state and not self.keeps_state:
            raise BenchError(
                f"clients of client_update.kind {kind} keep {min(client.state)}, but"
                " its class has keeps_state = False: set it to True"
            )
        self._check_state(client.state)
        if not self.keeps_state or not bool(torch.isfinite(messages).all()):
            return
        # Copies: a view would be saved with the whole tensor behind it.
        self._states[client.number] = {
            name: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for name, value in client.state.items()
        }

    def personal_weights(
        self, theta: np.ndarray, numbers: np.ndarray
    ) -> Iterator[np.ndarray]:
        chunk = CHUNK_PER_THREAD * self._workers.count
        with self._workers.running() as pool:
            for start in range(0, len(numbers), chunk):
                ids = numbers[start : start + chunk]
                yield from pool.map(lambda client: self._personal(theta, client), ids)

    def _personal(self, theta: np.ndarray, number: int) -> np.ndarray:
        with self._workers.worker() as (gradients, room):
            model = self._model(theta, gradients, room)
            (client,) = self._clients(np.array([number]))
            weights: np.ndarray = self._update.personal_model(model, client).numpy()
            return weights

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that a checkpoint cannot hold."""
        for name, value in state.items():
            if not isinstance(value, (torch.Tensor, bool, int, float, str)):
                raise BenchError(
                    f"client_update.kind {self._update.kind} keeps {name}, a"
                    f" {type(value).__name__}: keep only tensors, numbers and texts,"
                    " which a checkpoint can hold"
                )

    def receive_broadcast(self, means: Sequence[np.ndarray]) -> None:
        by_name = {
            name: torch.from_numpy(mean)
            for name, mean in zip(self._update.sends_too, means, strict=True)
        }
        self._update.receive_broadcast(self._public_state, by_name)
        self._check_state(self._public_state)

    def state(self) -> Any:
        clients: dict[int, dict[str, Any]] = {}
        for states in self._processes.gather(self._states):
            clients |= states
        return {"clients": clients, "public": self._public_state}

    def restore(self, state: Any) -> None:
        self._public_state = state["public"]
        self._states = {
            client: values
            for client, values in state["clients"].items()
            if self._is_here(client)
        }


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


def within_task(
    run: Run, records: int, *, steps: int, batches: str = "full"
) -> Sampler:
    """Return the sampler of a sum that each client takes over its own examples.

    A client takes part in one round.

    For `steps` and `batches` see `dpsum.participation.within_task`.

    Args:
        run: the run.
        records: number of examples of a client.
        steps: number of sums of a client.
        batches: how the examples of each sum are chosen.
    """
    return participation.within_task(
        clients=run.clients.count,
        rounds=run.participation.rounds,
        records=records,
        steps=steps,
        batches=batches,
    )


class ClientUpdate(Part):
    """Base of the client updates.

    Attributes:
        client_data: data of a client, "tasks" (few-shot) or "records".
        sends: name of the quantity that the server sums.
        sends_too: names of the further messages of a client, each with a sum of its own
            (`Run.further_sums`).
        by_record: whether clients compute each record's gradient separately, so that
            they may sum over their own records.
        couples_records: whether clients may do so where a record's gradient depends on
            other records of its batch.
        any_size: whether clients may hold different numbers of records.
        keeps_state: whether a client keeps something of its own records from one of its
            rounds to the next, besides releases (a personal head, a control variate);
            None: not declared.
        contributes_by_lot: whether the client's own sums take one contribution for a
            lot of records in place of one for each, so that no canary can be put into
            them.
        columns_are_released: whether the columns that the update fills in a private run
            follow from releases alone.

    A class that overrides `clients` declares `keeps_state` anew; a class that overrides
    `columns` declares `columns_are_released` anew: see `proof_assumptions.declared`.
    """

    package: ClassVar[str] = "dpfedbench.training.client_updates"
    client_data: ClassVar[str]
    sends: ClassVar[str]
    sends_too: ClassVar[tuple[str, ...]] = ()
    by_record: ClassVar[bool] = False
    couples_records: ClassVar[bool] = False
    any_size: ClassVar[bool] = False
    keeps_state: ClassVar[bool | None] = None
    contributes_by_lot: ClassVar[bool] = False
    columns_are_released: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse an update whose `contributions` would never be called."""
        super().__init_subclass__(**options)
        if "contributions" in vars(cls) and cls.clients is not ClientUpdate.clients:
            raise BenchError(
                f"{cls.__name__} defines contributions, but the clients of its base"
                " class do not call it: extend ClientUpdate or ModelDifference"
            )

    def net(self, net: Net) -> Net:
        """Return the model with the weights that this update learns in addition."""
        return net

    def adapted(self, net: Net) -> Sequence[str] | None:
        """Return the tensors that adaptation to a task changes; None: all."""
        return None

    def record_subset(
        self, sum_: SumSpec, *, seed: int, client: int, records: int
    ) -> np.ndarray:
        """Return the positions, ascending, of the records of a client's own sum.

        They are all of the client's records, or a part of them.
        """
        return np.arange(records)

    @property
    def mixes_records(self) -> bool:
        """Whether the update of an example depends on others, for any model."""
        return False

    def within_records(self, run: Run) -> bool:
        """Return whether clients compute each example's gradient from it alone."""
        by_example = any(sum_.unit == "record" for sum_ in run.client_sums)
        alone = (
            self.by_record
            or by_example
            or (run.model.record_level and not self.mixes_records)
        )
        return self.client_data == "tasks" and alone

    def columns(self, run: Run) -> tuple[str, ...]:
        """Return the columns of history.csv that these clients fill in addition."""
        return ()

    def samplers(self, run: Run, records: Any) -> dict[str, Sampler]:
        """Return the sampler of each sum that a client takes itself, by the sum's name.

        Only updates whose clients take private sums need this. The ledger is compared
        with it.

        Args:
            run: the run.
            records: number of records of a client, where the data determine it; a
                sequence with one number for each client where the numbers differ.
        """
        raise NotImplementedError(
            "only updates whose clients take private sums define this"
        )

    def contributions(
        self, model: LocalModel, cohort: Sequence[LocalClient], index: int
    ) -> Iterator[Any]:
        """Yield the message of each client of a cohort, in the cohort's order.

        Several threads and processes call this, each with a part of the round's cohort.
        Each message has to follow from the data of its own client alone.

        Args:
            model: the model that the server sent.
            cohort: clients, each with its examples and its state.
            index: number of the round, from 0.

        Yields:
            A client's message, float32 [d]. Updates with `sends_too` yield one message
            for each sum; the message to the server's own sum is the first.
        """
        raise NotImplementedError

    def personal_model(self, model: LocalModel, client: LocalClient) -> torch.Tensor:
        """Return the weights that a client uses itself, float32 [d].

        By default they are the server's. `clients.held_out_share` has them tested.

        Args:
            model: the model after the last round.
            client: the client with its training examples and its state, which is not
                changed.
        """
        return model.weights

    def receive_broadcast(
        self, public_state: dict[str, Any], means: Mapping[str, torch.Tensor]
    ) -> None:
        """Update the state that all clients keep of the server's further releases.

        The loop calls this after each round of a method with further sums.

        Args:
            public_state: tensors and plain values by name; `contributions` reads it as
                `model.public_state`, and a checkpoint has it.
            means: for each further sum, by name, the release divided by the number of
                all clients, float64 [d], zero at coordinates that clients do not share.
        """

    def clients(self, setup: Setup) -> Clients:
        """Return the clients of a run; by default those that call `contributions`.

        Raises:
            BenchError: settings that do not fit the data.
        """
        return CohortClients(self, setup)
