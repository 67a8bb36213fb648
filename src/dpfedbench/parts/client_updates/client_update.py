"""Base classes of client updates: their settings, and the clients that compute them."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dpfedbench.errors import BenchError
from dpfedbench.federation.processes import Processes
from dpfedbench.lazy import np, torch
from dpfedbench.parts.client_updates.local_model import (
    GRADIENTS_AT_ONCE,
    LocalClient,
    LocalModel,
    constant_thresholds,
)
from dpfedbench.settings.part import Part
from dpfedbench.settings.run import Run
from dpsum import participation
from dpsum.participation import Participation
from dpsum.sampling import Sampler
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.models.gradients import Choice, Gradients, Workers
    from dpfedbench.models.net import Net
    from dpfedbench.models.shared_coordinates import SharedCoordinates
    from dpsum.group_clipping import CoordinateGroups
    from dpsum.mechanism import Mechanism

Worker = TypeVar("Worker")

CHUNK_PER_THREAD = 8
"""Clients of which a thread computes one after another before what they send is added
up.
"""

Row = dict[str, Any]
"""A row of history.csv."""

Stream = Iterator[tuple["torch.Tensor", "np.ndarray", "np.ndarray"]]
"""Contributions float32 [n x each, d], losses [n] and accuracies [n] of some clients,
in the cohort's order. Of clients that send more than one message, contributions are
[messages, n x each, d], that to the server's own sum first. The loop takes the shared
coordinates of them.

Memory grows with the chunk, never with the cohort; a yielded tensor is overwritten
later.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything that the clients of a run are made from; an audit puts its own data
    and gradients here.

    Attributes:
        run: whose clients they are.
        net: the model.
        held: what the clients hold: `data.holdings.Tasks` or `Records`, or the like.
        gradients: how gradients of the model are taken.
        client_sums: those that each client takes over its own records; none for most
            methods.
        enter: makes the mechanism of a sum, with the arguments of
            `dpsum.mechanism.Mechanism._set`.
        plan: the participation plan.
        threads: CPU threads; they change no bit of the result.
        first: the first threshold, where it was found elsewhere.
        processes: those that take the run together.
        weights: that training starts from, float32 [d]; None: whoever makes the clients
            does not train.
        shared: the coordinates that clients share with the server; None: all.
    """

    run: Run
    net: Net
    held: Any
    gradients: Choice
    client_sums: Sequence[SumSpec]
    enter: Callable[..., Mechanism]
    plan: participation.Participation
    threads: int = 1
    first: float | None = None
    processes: Processes = dataclasses.field(default_factory=Processes)
    weights: np.ndarray | None = None
    shared: SharedCoordinates | None = None

    def workers(self, make: Callable[[Gradients], Worker]) -> Workers[Worker]:
        """Threads that each have what `make` makes of the run's gradients."""
        from dpfedbench.models.gradients import Workers

        return Workers(self.gradients, make, threads=self.threads)

    def groups_of(self, sum_: SumSpec) -> CoordinateGroups | None:
        """Return the groups of coordinates that a sum clips; None: it clips all
        coordinates together.
        """
        rule = sum_.clipping
        if not sum_.private or rule.groups == "all":
            return None
        return self.net.coordinate_groups(rule.groups, rule.noise_by_group)


class Clients:
    """The clients of one run.

    Attributes:
        each: contributions that each of them makes to the server's sum.
        served: what their work is counted in.
        divides: whether `contributions` itself divides the clients among processes, so
            that each of these asks it for all of a cohort, and the first is given all;
            else each process asks it for a part.
        keeps_state: whether clients remember something of their own from one of their
            rounds to the next; None: they do if the class has a `state`.
        has_personal_models: whether `personal_weights` gives clients models of their
            own.
    """

    each: int = 1
    served: str = "clients"
    divides: bool = False
    keeps_state: bool | None = None
    has_personal_models: bool = False

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Yield what the clients of round `index` send, given the model's weights [d]."""
        raise NotImplementedError

    def personal_weights(
        self, theta: np.ndarray, numbers: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield the weights [d] that each of some clients uses itself, in their order,
        given the server's: by default the server's.
        """
        for _ in numbers:
            yield theta

    def hear(self, means: Sequence[np.ndarray]) -> None:
        """Learn what the server released beside its own sum, over the number of all
        clients: float64 [d] each.
        """

    def row(self) -> Row | None:
        """The round's row of the history, where it is not the server's; None where it
        is.
        """
        return None

    def work(self, cohort: np.ndarray) -> int | None:
        """Return how much the round served, in `served`; None: as many as came, or were
        expected.
        """
        return None

    def state(self) -> Any:
        """Everything that a restart needs; asked of all processes at once, and the
        first one's is kept.
        """
        return None

    def restore(self, state: Any) -> None:
        """The inverse of `state`."""


class ClientByClient(Clients):
    """Clients that threads compute one by one; each thread has a worker of its own.

    Args:
        setup: of the run.
        make: a worker, given gradients of the model.
        device: where clients write what they send; None: where the model is.
    """

    def __init__(
        self,
        setup: Setup,
        make: Callable[[Gradients], Any],
        *,
        device: str | None = None,
    ) -> None:
        self.setup = setup
        self.dimension = setup.net.dimension
        self._workers = setup.workers(make)
        self._device = device or self._workers.device

    def client(
        self,
        worker: Any,
        theta: np.ndarray,
        client: int,
        index: int,
        held: Any,
        out: torch.Tensor,
    ) -> Sequence[float]:
        """Write what a client sends in round `index` to `out` [each, d]; its loss and
        accuracy (0 to 1).

        Args:
            worker: the thread's.
            theta: the model's weights [d].
            client: its number.
            index: of the round.
            held: what `gathered` gives for it.
            out: to be written to.
        """
        raise NotImplementedError

    def gathered(self, ids: np.ndarray) -> Sequence[Any]:
        """Return the data of the clients of a chunk, where it is read for all of them
        at once.
        """
        return [None] * len(ids)

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        chunk = CHUNK_PER_THREAD * self._workers.count
        room = torch.empty((chunk, self.each, self.dimension), device=self._device)

        def computed(client: int, held: Any, out: torch.Tensor) -> Sequence[float]:
            with self._workers.worker() as worker:
                return self.client(worker, theta, int(client), index, held, out)

        with self._workers.running() as pool:
            for start in range(0, len(cohort), chunk):
                ids = cohort[start : start + chunk]
                measures = np.array(
                    list(pool.map(computed, ids, self.gathered(ids), room))
                ).reshape(-1, 2)
                yield (
                    room[: len(ids)].flatten(end_dim=1),
                    measures[:, 0],
                    measures[:, 1],
                )


class CohortClients(Clients):
    """The clients of an update that has `contributions`.

    Clients with state are computed by the same process in all rounds, which keeps their
    state; a checkpoint has the states of all processes.
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
        shared = setup.shared
        mask = np.ones(self._dimension, bool) if shared is None else shared.mask
        self._shared = torch.from_numpy(mask.copy())
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
                measures = np.full((len(ids), 2), np.nan)
                pieces = self._pieces(positions)
                computed = pool.map(
                    lambda piece, of=ids: self._compute(theta, of[piece], index),
                    pieces,
                )
                for piece, (messages, measured) in zip(pieces, computed, strict=True):
                    rows[piece] = messages
                    measures[piece] = measured
                if self.divides:
                    self._gather(positions, rows, measures)
                messages = rows.movedim(1, 0)
                if self._message_count == 1:
                    messages = messages[0]
                yield messages, measures[:, 0], measures[:, 1]

    def _is_here(self, client: int) -> bool:
        """Return whether this process computes a client that it is asked for."""
        count = self._processes.count
        return not self.divides or int(client) % count == self._processes.rank

    def _pieces(self, positions: Sequence[int]) -> list[list[int]]:
        """Return the positions in a chunk that each thread computes."""
        size = max(1, -(-len(positions) // self._workers.count))
        return [list(positions[i : i + size]) for i in range(0, len(positions), size)]

    def _gather(
        self, positions: Sequence[int], rows: torch.Tensor, measures: np.ndarray
    ) -> None:
        """Write what other processes computed to `rows` and `measures`, in the first
        process.
        """
        here = (positions, rows[positions], measures[positions])
        for their_positions, their_rows, their_measures in self._processes.collected(
            here
        ):
            rows[their_positions] = their_rows
            measures[their_positions] = their_measures

    def _compute(
        self, theta: np.ndarray, ids: np.ndarray, index: int
    ) -> tuple[torch.Tensor, np.ndarray]:
        """Compute some clients on this thread, and keep their states.

        Returns:
            Messages [n, messages, d], and each client's loss and accuracy [n, 2].
        """
        rows = torch.zeros((len(ids), self._message_count, self._dimension))
        measures = np.full((len(ids), 2), np.nan)
        with self._workers.worker() as (gradients, room):
            model = self._model(theta, gradients, room)
            clients = self._clients(ids)
            count = 0
            for message in self._update.contributions(model, clients, index):
                if count == len(clients):
                    self._refuse_count("more", len(clients))
                rows[count] = self._checked(message)
                count += 1
            if count < len(clients):
                self._refuse_count(str(count), len(clients))
            for position, client in enumerate(clients):
                self._keep(client, rows[position])
                if not self._setup.run.private:
                    # A private run has no column of losses.
                    examples = client.query or client.records
                    assert examples is not None
                    measured = gradients.evaluate(theta, *examples)
                    measures[position] = measured.loss, measured.accuracy
        return rows, measures

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
        batch = held.gather(np.asarray(ids))
        return [
            LocalClient(
                number=number,
                state=self._state_of(number),
                support=(batch.support_x[position], batch.support_y[position]),
                query=(batch.query_x[position], batch.query_y[position]),
            )
            for position, number in enumerate(numbers)
        ]

    def _state_of(self, number: int) -> dict[str, Any]:
        return {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in self._states.get(number, {}).items()
        }

    def _checked(self, message: Any) -> torch.Tensor:
        """Return what a client sends, [messages, d]."""
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
                f" {shape}: yield the weights of the whole model, and the loop takes the"
                " shared ones"
            )
        return message

    def _refuse_count(self, count: str, clients: int) -> None:
        raise BenchError(
            f"contributions of client_update.kind {self._update.kind} yields {count}"
            f" messages for {clients} clients: yield one for each client of the cohort,"
            " in its order"
        )

    def _keep(self, client: LocalClient, messages: torch.Tensor) -> None:
        """Keep a client's state, unless its message counts as zero since it is not
        finite.
        """
        kind = self._update.kind
        if client.state and not self.keeps_state:
            raise BenchError(
                f"clients of client_update.kind {kind} keep {min(client.state)}, but"
                " its class says keeps_state = False: set it to True"
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
        """Refuse a state that a checkpoint could not be read with."""
        for name, value in state.items():
            if not isinstance(value, (torch.Tensor, bool, int, float, str)):
                raise BenchError(
                    f"client_update.kind {self._update.kind} keeps {name}, a"
                    f" {type(value).__name__}: a state has tensors, numbers and texts,"
                    " which a checkpoint can hold"
                )

    def hear(self, means: Sequence[np.ndarray]) -> None:
        by_name = {
            name: torch.from_numpy(mean)
            for name, mean in zip(self._update.sends_too, means, strict=True)
        }
        self._update.receive_broadcast(self._public_state, by_name)
        self._check_state(self._public_state)

    def state(self) -> Any:
        clients: dict[int, dict[str, Any]] = {}
        for states in self._processes.collected(self._states):
            clients |= states
        return {"clients": clients, "public": self._public_state}

    def restore(self, state: Any) -> None:
        self._public_state = state["public"]
        self._states = {
            client: values
            for client, values in state["clients"].items()
            if self._is_here(client)
        }


def each_holder(
    mechanism: Mechanism,
    processes: Processes,
    pool: concurrent.futures.Executor,
    take: Callable[[int], Any],
) -> list[Any]:
    """Return the results of `take` for each holder of a mechanism, who takes a sum in
    it.

    Each process asks it for its own holders. Afterwards all know what was released, and
    the thresholds.
    """
    own_holders = processes.own(mechanism.holders)
    results = dict(zip(own_holders, pool.map(take, own_holders), strict=True))
    states = {
        holder: mechanism.states[holder] for holder in own_holders if mechanism.states
    }
    parts = processes.all((results, mechanism.releases, states))
    mechanism.releases = sorted(
        (release for _, releases, _ in parts for release in releases),
        key=lambda one: (one.holder, one.step),
    )
    for part_results, _, moved in parts:
        results |= part_results
        for holder, state in moved.items():
            mechanism.states[holder] = state
    return [results[holder] for holder in range(mechanism.holders)]


def within_task(
    run: Run, records: int, *, steps: int, batches: str = "full"
) -> Sampler:
    """The sampler of a sum that each client takes, once in all, over so many of its own
    examples.

    For `steps` and `batches` see `dpsum.participation.own_records`.
    """
    return participation.own_records(
        clients=run.clients.count,
        rounds=run.part(Participation).rounds,
        records=records,
        steps=steps,
        batches=batches,
    )


class ClientUpdate(Part):
    """Base of the client updates.

    `client_data`: what its clients have, "tasks" (few-shot) or "records". `sends`: the
    name of what the server sums; `sends_too`: of what its clients send besides, each in
    a sum of its own (`Method.further_sums`). `by_record`: whether its clients take
    records one by one, so that they may sum over their own. `couples_records`: whether
    they can do so where a record's gradient depends on others of its batch. `any_size`:
    whether clients may hold different numbers of records. `keeps_state`: whether a client remembers
    something of its own records from one of its rounds to the next, beside what was
    released (a personal head, a control variate); None: not declared.
    `contributes_by_lot`: whether its own sums take one contribution for a lot of records
    and not one for each, so that no canary can be put into them.
    `columns_are_released`: whether the columns that it fills in a private run follow
    from releases alone. A class with a `clients` (or `columns`) of its own declares the
    latter two anew: see `proof_assumptions.declared`.
    """

    package: ClassVar[str] = "dpfedbench.parts.client_updates"
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
        """Refuse an update whose `contributions` nobody would call."""
        super().__init_subclass__(**options)
        if "contributions" in vars(cls) and cls.clients is not ClientUpdate.clients:
            raise BenchError(
                f"{cls.__name__} has contributions, but the class that it extends makes"
                " clients that do not call it: extend ClientUpdate or ModelDifference"
            )

    def net(self, net: Net) -> Net:
        """The model with what this update learns beside its weights."""
        return net

    def adapted(self, net: Net) -> Sequence[str] | None:
        """Names of the tensors that adapting to a task moves; None: all."""
        return None

    def places(
        self, sum_: SumSpec, *, seed: int, client: int, records: int
    ) -> np.ndarray:
        """Return the places, ascending, of the records that a client's own sum is over:
        all of its records, or a part of them.
        """
        return np.arange(records)

    @property
    def mixes_records(self) -> bool:
        """Whether what it learns of one example depends on others, whatever the model
        is.
        """
        return False

    def within_records(self, run: Run) -> bool:
        """Whether few-shot clients take each example's gradient by itself, from that
        example alone.
        """
        by_example = any(sum_.unit == "record" for sum_ in run.client_sums)
        alone = (
            self.by_record
            or by_example
            or (run.model.record_level and not self.mixes_records)
        )
        return self.client_data == "tasks" and alone

    def columns(self, run: Run) -> tuple[str, ...]:
        """The columns of history.csv that its clients fill, besides those of every
        run.
        """
        return ()

    def samplers(self, run: Run, records: Any) -> dict[str, Sampler]:
        """Return the sampler of each sum that a client takes itself, by the sum's name,
        as the ledger states it.

        Asked of an update whose clients take private sums: the ledger is compared with
        it. `records` is how many a client holds, where the data say it; of clients that
        differ, each one's.
        """
        raise NotImplementedError("of updates whose clients take private sums")

    def contributions(
        self, model: LocalModel, cohort: Sequence[LocalClient], index: int
    ) -> Iterator[Any]:
        """Yield what each client of a cohort sends, in the cohort's order.

        It is called in several threads and processes, each time with a part of the
        round's cohort. Each message has to follow from its own client alone.

        Args:
            model: the model that the server sent.
            cohort: clients, each with its examples and its state.
            index: of the round, from 0.

        Yields:
            A client's message, float32 [d]; of updates with `sends_too` one for each
            sum, that to the server's own sum first.
        """
        raise NotImplementedError

    def personal_model(self, model: LocalModel, client: LocalClient) -> torch.Tensor:
        """Return the weights that a client uses itself, float32 [d]: by default the
        server's. `clients.held_out_share` has them tested.

        Args:
            model: the model after the last round.
            client: with its training examples and its state, which stays as it is.
        """
        return model.weights

    def receive_broadcast(
        self, public_state: dict[str, Any], means: Mapping[str, torch.Tensor]
    ) -> None:
        """Keep what all clients remember of the server's further releases.

        Called after each round of a method with further sums.

        Args:
            public_state: what is kept, tensors and plain values by name; `contributions`
                reads it as `model.public_state`, and a checkpoint has it.
            means: of each further sum, by its name: the release over the number of all
                clients, float64 [d], zero where clients share nothing.
        """

    def clients(self, setup: Setup) -> Clients:
        """The clients of a run: those of `contributions`, unless an update overrides
        this.

        Raises:
            BenchError: settings that do not fit the data.
        """
        return CohortClients(self, setup)
