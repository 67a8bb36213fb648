"""Clients of an update that has `contributions`: threads, chunks, processes, state and
its checkpoint are the loop's.

docs/client-updates.md documents what an update gets and returns.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpfedbench.parts.client_updates.client_update import (
    CHUNK_PER_THREAD,
    Clients,
    ClientUpdate,
    Setup,
    Stream,
)

if TYPE_CHECKING:
    from dpfedbench.models.gradients import Gradients, Measured
    from dpfedbench.models.net import Net
    from dpsum.sums import SumSpec

Examples = tuple["np.ndarray", "np.ndarray"]
"""Inputs [n, ...] and labels int64 [n]."""

_GRADIENTS_AT_ONCE = 8
"""Record gradients that are added up at once: they stay in the cache. Part of what a
result's bits are.
"""


@dataclasses.dataclass(kw_only=True)
class Client:
    """One client of a cohort, as its update sees it.

    Attributes:
        number: of the client, from 0.
        state: values that the client keeps from one of its rounds to the next, by name:
            tensors, numbers and texts. It is empty in the client's first round. What is
            written here never leaves the client.
        records: inputs and labels, of clients that hold records.
        support, query: inputs and labels of a few-shot client.
    """

    number: int
    state: dict[str, Any]
    records: Examples | None = None
    support: Examples | None = None
    query: Examples | None = None


class LocalModel:
    """The model in one round, as one thread computes with it.

    Attributes:
        shared: coordinates that clients share with the server, bool [d].
        public_state: what `receive_broadcast` has kept of the server's releases. Do not
            write to it.
    """

    def __init__(
        self,
        theta: np.ndarray,
        *,
        net: Net,
        gradients: Gradients,
        room: torch.Tensor,
        shared: torch.Tensor,
        thresholds: Mapping[str, float],
        public_state: Mapping[str, Any],
    ) -> None:
        self._theta = theta
        self._net = net
        self._gradients = gradients
        self._room = room
        self._thresholds = thresholds
        self.shared = shared
        self.public_state = public_state

    @functools.cached_property
    def head(self) -> torch.Tensor:
        """Coordinates of the last layer, bool [d]."""
        return self.mask("head")

    @property
    def weights(self) -> torch.Tensor:
        """A copy of the weights that the server sent, float32 [d]."""
        return torch.from_numpy(self._theta.copy())

    def mask(self, *names: str) -> torch.Tensor:
        """Return which coordinates belong to tensors or modules, bool [d]; names as of
        `Net.mask`.
        """
        return torch.from_numpy(self._net.mask(*names))

    def gradient(self, weights: torch.Tensor, examples: Examples) -> torch.Tensor:
        """Return the gradient of the examples' mean loss at `weights`, float32 [d]."""
        inputs, labels = examples
        total = self._gradients.added(weights.numpy(), inputs, labels, self._room)
        return torch.from_numpy((total / len(labels)).astype(np.float32))

    def evaluate(self, weights: torch.Tensor, examples: Examples) -> Measured:
        """Return losses and right answers of the examples at `weights`; `loss` and
        `accuracy` are their means.
        """
        return self._gradients.evaluate(weights.numpy(), *examples)

    def clipped(self, message: torch.Tensor, name: str) -> torch.Tensor:
        """Return a message as a sum of the server counts it: zero where clients share
        nothing, and scaled down to the sum's threshold.

        Args:
            message: float32 [d].
            name: of the sum, whose threshold is constant, or which is not private.

        Raises:
            BenchError: the threshold moves from round to round.
        """
        if name not in self._thresholds:
            raise BenchError(
                f"the threshold of {name} moves from round to round, so that clients"
                " cannot clip to it beforehand: take clipping.kind constant"
            )
        threshold = self._thresholds[name]
        counted = torch.where(self.shared, message, 0.0)
        norm = float(np.sqrt(np.square(counted.numpy(), dtype=np.float64).sum()))
        if threshold < norm < math.inf:
            counted *= threshold / norm
        return counted


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
        self._states: dict[int, dict[str, Any]] = {}
        self._public_state: dict[str, Any] = {}
        shared = setup.shared
        mask = np.ones(self._dimension, bool) if shared is None else shared.mask
        self._shared = torch.from_numpy(mask.copy())
        self._thresholds = _constant_thresholds(setup.run.sums())
        self._workers = setup.workers(self._worker)

    def _worker(self, gradients: Gradients) -> tuple[Gradients, torch.Tensor]:
        room = torch.empty((_GRADIENTS_AT_ONCE, self._dimension))
        return gradients, room.to(gradients.device)

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        chunk = CHUNK_PER_THREAD * self._workers.count
        with self._workers.running() as pool:
            for start in range(0, len(cohort), chunk):
                ids = cohort[start : start + chunk]
                places = [
                    place for place, client in enumerate(ids) if self._is_here(client)
                ]
                rows = torch.zeros((len(ids), self._message_count, self._dimension))
                measures = np.full((len(ids), 2), np.nan)
                pieces = self._pieces(places)
                computed = pool.map(
                    lambda piece, of=ids: self._compute(theta, of[piece], index),
                    pieces,
                )
                for piece, (messages, measured) in zip(pieces, computed, strict=True):
                    rows[piece] = messages
                    measures[piece] = measured
                if self.divides:
                    self._gather(places, rows, measures)
                messages = rows.movedim(1, 0)
                if self._message_count == 1:
                    messages = messages[0]
                yield messages, measures[:, 0], measures[:, 1]

    def _is_here(self, client: int) -> bool:
        """Return whether this process computes a client that it is asked for."""
        count = self._processes.count
        return not self.divides or int(client) % count == self._processes.rank

    def _pieces(self, places: Sequence[int]) -> list[list[int]]:
        """Return the places in a chunk that each thread computes."""
        size = max(1, -(-len(places) // self._workers.count))
        return [list(places[i : i + size]) for i in range(0, len(places), size)]

    def _gather(
        self, places: Sequence[int], rows: torch.Tensor, measures: np.ndarray
    ) -> None:
        """Write what other processes computed to `rows` and `measures`, in the first
        process.
        """
        here = (places, rows[places], measures[places])
        for their_places, their_rows, their_measures in self._processes.collected(here):
            rows[their_places] = their_rows
            measures[their_places] = their_measures

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
            for place, client in enumerate(clients):
                self._keep(client, rows[place])
                if not self._setup.run.private:
                    # A private run has no column of losses.
                    examples = client.query or client.records
                    assert examples is not None
                    measured = gradients.evaluate(theta, *examples)
                    measures[place] = measured.loss, measured.accuracy
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
        )

    def _clients(self, ids: np.ndarray) -> list[Client]:
        """Return clients with their examples and copies of their states."""
        held = self._setup.held
        numbers = [int(client) for client in ids]
        if self._update.client_data == "records":
            return [
                Client(
                    number=number,
                    state=self._state_of(number),
                    records=(held.images[number], held.labels[number]),
                )
                for number in numbers
            ]
        batch = held.gather(np.asarray(ids))
        return [
            Client(
                number=number,
                state=self._state_of(number),
                support=(batch.support_x[place], batch.support_y[place]),
                query=(batch.query_x[place], batch.query_y[place]),
            )
            for place, number in enumerate(numbers)
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

    def _keep(self, client: Client, messages: torch.Tensor) -> None:
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


def _constant_thresholds(sums: Sequence[SumSpec]) -> dict[str, float]:
    """Return the thresholds of sums that have the same one in all rounds; infinity
    where a sum is not clipped.
    """
    thresholds = {}
    for sum_ in sums:
        rule = sum_.clipping
        if rule is None:
            thresholds[sum_.name] = math.inf
        elif not rule.moves and rule.groups == "all" and rule.threshold is not None:
            thresholds[sum_.name] = float(rule.threshold)
    return thresholds
