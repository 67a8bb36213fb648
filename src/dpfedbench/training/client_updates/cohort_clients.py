"""Clients of an update that defines `contributions`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpfedbench.training.client_updates.local_model import (
    GRADIENTS_AT_ONCE,
    LocalClient,
    LocalModel,
    constant_thresholds,
)
from dpfedbench.training.clients import (
    CHUNK_PER_THREAD,
    Clients,
    Setup,
    task_examples,
)
from dpfedbench.training.distributed import Stream

if TYPE_CHECKING:
    from dpfedbench.models.gradients import Gradients


_ADD = (
    "name it in sends_too, and give the method's sums() a SumSpec of that name before"
    " the last"
)
"""Advice where a message has no sum."""


class CohortClients(Clients):
    """Clients of an update that defines `contributions`.

    The same process computes a client with state in all rounds, and keeps its state. A
    checkpoint has the states of all processes.
    """

    def __init__(self, update: Any, setup: Setup) -> None:
        # A `ClientUpdate`, whose module imports this one.
        self._update = update
        self._setup = setup
        self._processes = setup.processes
        self._dimension = setup.net.dimension
        self._names = (update.sends, *update.sends_too)
        specs = (setup.run.server_sum, *setup.run.further_sums)
        self._shapes = [spec.shape or (self._dimension,) for spec in specs]
        self._sizes = [math.prod(shape) for shape in self._shapes]
        self.divides = self.keeps_state or len(self._names) > 1
        self.has_personal_models = update.has_personal_model
        self._states: dict[int, dict[str, Any]] = {}
        self._public_state: dict[str, Any] = {}
        sums = setup.run.all_sums
        self._thresholds = constant_thresholds(sums)
        self._shaped_sums = {spec.name for spec in sums if spec.shape is not None}
        self._workers = setup.workers(self._worker)

    @property
    def keeps_state(self) -> bool:
        return self._update.keeps_state is not False

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
                yield self._chunk(pool, theta, ids, index)

    def _chunk(
        self, pool: Executor, theta: np.ndarray, ids: np.ndarray, index: int
    ) -> tuple[Any, np.ndarray]:
        """Return the messages and the losses of some clients, and keep their states."""
        rows = [torch.zeros((len(ids), size)) for size in self._sizes]
        losses = np.full(len(ids), np.nan)

        def compute(positions: Sequence[int]) -> None:
            """Compute the clients at these positions in this thread."""
            with self._workers.worker() as (gradients, room):
                model = self._model(theta, gradients, room)
                clients = self._clients(ids[positions])
                stream = self._update.contributions(model, clients, index)
                for position, message in zip(positions, stream, strict=True):
                    parts = self._checked(message)
                    for messages, part in zip(rows, parts, strict=True):
                        messages[position] = part
                for position, client in zip(positions, clients, strict=True):
                    self._keep(client, [messages[position] for messages in rows])
                    if not self._setup.run.private:
                        # A private run publishes no losses.
                        examples = client.query or client.records
                        assert examples is not None
                        losses[position] = gradients.evaluate(theta, *examples).loss

        positions = [
            position for position, client in enumerate(ids) if self._is_here(client)
        ]
        list(pool.map(compute, self._pieces(positions)))
        if self.divides:
            self._gather(positions, rows, losses)
        return (rows if len(rows) > 1 else rows[0]), losses

    def _is_here(self, client: int) -> bool:
        """Return whether this process computes a client."""
        count = self._processes.count
        return not self.divides or int(client) % count == self._processes.rank

    def _pieces(self, positions: Sequence[int]) -> list[list[int]]:
        """Return the positions in a chunk that each thread computes."""
        size = max(1, -(-len(positions) // self._workers.count))
        return [list(positions[i : i + size]) for i in range(0, len(positions), size)]

    def _gather(
        self, positions: Sequence[int], rows: Sequence[torch.Tensor], losses: np.ndarray
    ) -> None:
        """Write the results of all processes to the first process's arrays."""
        here = (
            positions,
            [messages[positions] for messages in rows],
            losses[positions],
        )
        for their_positions, their_rows, their_losses in self._processes.gather(here):
            for messages, their_messages in zip(rows, their_rows, strict=True):
                messages[their_positions] = their_messages
            losses[their_positions] = their_losses

    def _model(
        self, theta: np.ndarray, gradients: Gradients, room: torch.Tensor
    ) -> LocalModel:
        return LocalModel(
            theta,
            self._setup,
            gradients=gradients,
            room=room,
            thresholds=self._thresholds,
            public_state=self._public_state,
            shaped_sums=self._shaped_sums,
        )

    def _clients(self, ids: np.ndarray) -> list[LocalClient]:
        """Return clients with their examples and copies of their states."""
        held = self._setup.held
        clients = [
            LocalClient(number=number, state=self._state_of(number))
            for number in map(int, ids)
        ]
        if self._update.client_data == "records":
            for client in clients:
                number = client.number
                client.records = held.images[number], held.labels[number]
            return clients
        for client, examples in zip(clients, task_examples(held, ids), strict=True):
            client.support, client.query = examples
        return clients

    def _state_of(self, number: int) -> dict[str, Any]:
        return {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in self._states.get(number, {}).items()
        }

    def _checked(self, message: Any) -> list[torch.Tensor]:
        """Return a client's messages, each [size], after a check of their shapes.

        Raises:
            BenchError: the client sends other messages than its class declares.
        """
        messages = []
        for name, shape, part in zip(
            self._names, self._shapes, self._parts(message), strict=True
        ):
            array = torch.as_tensor(part)
            if tuple(array.shape) != shape:
                advice = "yield the shape that its SumSpec states"
                if name not in self._shaped_sums:
                    advice = (
                        "yield the weights of the whole model; the loop selects the"
                        " shared ones"
                    )
                raise BenchError(
                    f"{self._source} yields an array {list(array.shape)} for {name}, not"
                    f" {list(shape)}: {advice}"
                )
            messages.append(array.reshape(-1))
        return messages

    def _parts(self, message: Any) -> Sequence[Any]:
        """Return the messages of a client in the order of their sums.

        Args:
            message: an array; for several sums a mapping by their names, or a sequence
                in their order.

        Raises:
            BenchError: a message is missing, or has no sum.
        """
        declared = ", ".join(self._names)
        if isinstance(message, Mapping):
            missing = [name for name in self._names if name not in message]
            if missing:
                raise BenchError(
                    f"{self._source} yields no {', '.join(missing)}, which its class"
                    f" declares: yield {declared} for each client, or take the name out"
                    " of sends_too and out of the method's sums()"
                )
            surplus = [str(name) for name in message if name not in self._names]
            if surplus:
                raise BenchError(
                    f"{self._source} yields {', '.join(surplus)}, which its class does"
                    f" not declare ({declared}): {_ADD}"
                )
            return [message[name] for name in self._names]
        if len(self._names) == 1:
            if isinstance(message, (tuple, list)):
                raise BenchError(
                    f"{self._source} yields {len(message)} messages for a client, but"
                    f" its class declares one, {declared}: {_ADD}"
                )
            return [message]
        is_array = not isinstance(message, (tuple, list))
        count = 1 if is_array and message.ndim < 2 else len(message)
        if count != len(self._names):
            raise BenchError(
                f"{self._source} yields {count} message{'s' * (count > 1)} for a client,"
                f" but its class declares {len(self._names)}, {declared}: yield one for"
                " each, as a tuple or by name; those of sends_too that are not sent have"
                " no sum"
            )
        return list(message)

    @property
    def _source(self) -> str:
        return f"contributions of client_update.kind {self._update.kind}"

    def _keep(self, client: LocalClient, messages: Sequence[torch.Tensor]) -> None:
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
        is_finite = all(bool(torch.isfinite(message).all()) for message in messages)
        if not self.keeps_state or not is_finite:
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
            return self._update.personal_model(model, client).numpy()

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
