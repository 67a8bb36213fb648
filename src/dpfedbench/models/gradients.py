"""Gradients that training needs from a model: of tasks, and of single records.

The loss of a task is the mean over its batch of records. T tasks are computed at once,
each with its own weights. This base class checks sizes for all implementations. The
methods that an implementation defines start with an underscore.
"""

from __future__ import annotations

import functools
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from dpfedbench.errors import BenchError
from dpfedbench.models.net import Array, Net, tensor_of
from dpfedbench.models.threads import Threads

Worker = TypeVar("Worker")


class Measured(NamedTuple):
    """Losses, right answers and numbers of answers of n records, float64 [n] each."""

    losses: np.ndarray
    right: np.ndarray
    of: np.ndarray

    @property
    def loss(self) -> float:
        """Mean loss over the records."""
        return float(self.losses.mean())

    @property
    def accuracy(self) -> float:
        """Share of right answers, 0 to 1."""
        return float(self.right.sum() / self.of.sum())


class Total(Protocol):
    """Sum over weights that gradients are added to, e.g. a private sum of `dpsum`."""

    @property
    def dimension(self) -> int: ...

    def add(self, contributions: torch.Tensor) -> np.ndarray:
        """Add rows [n, d] and return their norms [n]."""
        ...

    def add_by(
        self, add: Callable[[float, np.ndarray, np.ndarray], None], count: int
    ) -> np.ndarray:
        """Let a compiled loop add `count` rows, and return their norms."""
        ...


class Inputs(NamedTuple):
    """Records [T, n, ...], prepared once for several calls."""

    shape: tuple[int, ...]
    value: Any


class Point(ABC):
    """T tasks at their weights, with the state that Hessian products need.

    The weights must not be written to before the products are computed.

    Attributes:
        losses: mean loss of each task, float64 [T].
        accuracies: share of right answers of each task, 0 to 1, float64 [T].
    """

    losses: np.ndarray
    accuracies: np.ndarray

    def __init__(self, theta: Array) -> None:
        self._shape = tuple(theta.shape)
        self._type = theta.dtype

    def _measure(self, tasks: Sequence[Measured]) -> None:
        """Set the losses and accuracies from the tasks' measures."""
        self.losses = np.array([task.loss for task in tasks])
        self.accuracies = np.array([task.accuracy for task in tasks])

    def product(self, direction: Array, out: Array) -> None:
        """Write each task's Hessian times its direction [T, w] to `out` [T, w]."""
        self._product(
            *(_fitting(array, self._shape, self._type) for array in (direction, out))
        )

    @abstractmethod
    def _product(self, direction: Array, out: Array) -> None: ...


class Gradients(ABC):
    """Gradients of a network by one implementation, for use by one thread.

    Arrays may be numpy's or torch's. Output arrays are torch tensors on the device, or
    numpy arrays on a CPU. Records are uint8 or float in [0, 1] (images) or int64
    (tokens), labels int64. d counts all coordinates of the flat vector, w those of the
    module (`Net.weights`). If a `block` of the network (`Net.blocks`) is named,
    records' gradients have that block's coordinates only: d is then their number
    wherever gradients are written or added up, while `theta` stays the whole vector.

    Args:
        net: the network.
        device: "cpu" or a CUDA device.
        dtype: type of the weights: float32, or float64 for tests.

    Raises:
        BenchError: the module cannot be used (`Net.check`).
    """

    name: str

    def __init__(
        self, net: Net, *, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.net = net
        self.device = device
        self.dtype = dtype

    @property
    def number(self) -> np.dtype:
        """`dtype` as a numpy type."""
        return np.dtype(_name(self.dtype))

    def prepared(self, x: Array | Inputs) -> Inputs:
        """Prepare records [T, n, ...] for calls of `task_gradients` and `logits`.

        Raises:
            ValueError: the network takes records of another shape.
        """
        if isinstance(x, Inputs):
            return x
        if tuple(x.shape[2:]) != self.net.input_shape:
            raise ValueError(
                f"records must be [T, n, {self.net.input_shape}], not {list(x.shape)}"
            )
        return Inputs(tuple(x.shape), self._prepared(x))

    def task_gradients(
        self,
        theta: Array,
        x: Array | Inputs,
        y: Array,
        out: Array,
        *,
        products: bool = False,
        into: Point | None = None,
    ) -> Point:
        """Compute mean loss, accuracy and gradient of T tasks.

        Args:
            theta: weights of each task [T, w].
            x, y: records [T, n, ...] and labels [T, n, ...].
            out: array [T, w] that receives each task's gradient.
            products: whether the caller will use `Point.product`.
            into: a point that is no longer needed; its memory is reused.

        Returns:
            The point of the tasks, which computes Hessian products.

        Raises:
            ValueError: the sizes do not fit together.
        """
        inputs = self._inputs(theta, x, y)
        return self._task_gradients(
            theta,
            inputs,
            y,
            _fitting(out, tuple(theta.shape), self.dtype),
            products,
            into,
        )

    def through_steps(
        self,
        theta: torch.Tensor,
        support: Inputs,
        support_y: Array,
        query: Inputs,
        query_y: Array,
        rates: torch.Tensor,
        *,
        second: bool,
        out: Array,
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Compute MAML's gradient in one call, where the implementation can.

        `MetaGradient` computes the same without such a call.

        Args:
            theta: weights of all tasks [w].
            support, support_y, query, query_y: records and labels of T tasks, as for
                `task_gradients`.
            rates: rate of each step, one for all weights [K, 1] or one per weight [K,
                w].
            second: whether the gradient is carried back through the steps.
            out: array [T, w] that receives each task's gradient.

        Returns:
            Mean loss and share of right answers of each query set, float64 [T]. None:
            the implementation has no such call.
        """
        return None

    def logits(self, theta: Array, x: Array | Inputs) -> Array:
        """Return logits [T, n, outputs] of records [T, n, ...] at weights [T, w]."""
        return self._logits(theta, self._inputs(theta, x))

    def record_gradients(
        self, theta: Array, x: Array, y: Array, out: Array, *, block: str = ""
    ) -> Measured:
        """Write each record's gradient to `out` [n, d].

        Args:
            theta: weights [d] of a network without `extra` tensors.
            x, y: records [n, ...] and labels [n, ...].
            block: block of the network to which the gradients are restricted.

        Raises:
            ValueError: the sizes do not fit together.
            BenchError: a record of this network has no gradient of its own.
        """
        self._check_records(theta, x, y)
        return self._record_gradients(
            theta, x, y, _fitting(out, (len(x), self.width(block)), self.dtype), block
        )

    def record_gradient_pieces(
        self, theta: Array, x: Array, y: Array, room: Array, *, block: str = ""
    ) -> Iterator[tuple[Measured, Array]]:
        """Yield the records' gradients a few records at a time.

        The caller uses each piece while it is still in the processor's cache.

        Args:
            theta, x, y, block: as for `record_gradients`.
            room: buffer [m, d], overwritten by each piece.

        Yields:
            Measures of the next k <= m records, and their gradients in the first k rows
            of the buffer.
        """
        self._check_records(theta, x, y)
        _fitting(room, (max(len(room), 1), self.width(block)), self.dtype)
        for start in range(0, len(x), len(room)):
            records = slice(start, start + len(room))
            rows = room[: len(x[records])]
            yield (
                self._record_gradients(theta, x[records], y[records], rows, block),
                rows,
            )

    def summed_record_gradients(
        self, theta: Array, x: Array, y: Array, room: Array
    ) -> np.ndarray:
        """Return the sum of the records' gradients, float64 [d].

        Arguments are as for `record_gradient_pieces`. The rows of a piece are added up
        first.
        """
        total = np.zeros(self.net.dimension)
        for _, rows in self.record_gradient_pieces(theta, x, y, room):
            total += tensor_of(rows, "cpu").numpy().sum(axis=0)
        return total

    def add_record_gradients(
        self, theta: Array, x: Array, y: Array, total: Total, *, block: str = ""
    ) -> tuple[Measured, np.ndarray]:
        """Add each record's gradient to a sum over weights, which may clip it.

        Args:
            theta, x, y, block: as for `record_gradients`.
            total: sum with as many coordinates as there are weights.

        Returns:
            The records' measures and the norms of their gradients, float64 [n], as the
            sum returns them.
        """
        self._check_records(theta, x, y)
        if total.dimension != self.width(block):
            raise ValueError(
                f"gradients need a sum of {self.width(block)} coordinates, not"
                f" {total.dimension}"
            )
        if block or getattr(total, "as_rows", False):
            return self._add_pieces(theta, x, y, total, block)
        return self._add_record_gradients(theta, x, y, total)

    def evaluate(self, theta: Array, x: Array, y: Array) -> Measured:
        """Return losses and right answers of records [n, ...] at weights [d].

        It computes no gradients.
        """
        self._check_sizes(theta, x, y)
        return self._evaluate(theta, x, y)

    def width(self, block: str = "") -> int:
        """Return the number of coordinates of a record's gradient.

        Args:
            block: the block to which the gradient is restricted; "": none.

        Raises:
            ValueError: the network has no such block.
        """
        if not block:
            return self.net.dimension
        if block not in self.net.blocks:
            raise ValueError(
                f"the network has no block {block!r}, only {sorted(self.net.blocks)}"
            )
        coordinates = self.net.blocks[block]
        return int(coordinates.stop - coordinates.start)

    # Methods of the implementations

    @staticmethod
    def tasks(net: Net) -> int:
        """Return the number of tasks that a CPU thread should compute at once."""
        return 1

    @abstractmethod
    def _prepared(self, x: Array) -> Any: ...

    @abstractmethod
    def _task_gradients(
        self,
        theta: Array,
        x: Inputs,
        y: Array,
        out: Array,
        products: bool,
        into: Point | None,
    ) -> Point: ...

    @abstractmethod
    def _logits(self, theta: Array, x: Inputs) -> Array: ...

    @abstractmethod
    def _record_gradients(
        self, theta: Array, x: Array, y: Array, out: Array, block: str
    ) -> Measured: ...

    @abstractmethod
    def _evaluate(self, theta: Array, x: Array, y: Array) -> Measured: ...

    @abstractmethod
    def _together(self) -> int:
        """Return the number of records whose gradients are computed at once."""

    def _add_record_gradients(
        self, theta: Array, x: Array, y: Array, total: Total
    ) -> tuple[Measured, np.ndarray]:
        return self._add_pieces(theta, x, y, total, "")

    def _add_pieces(
        self, theta: Array, x: Array, y: Array, total: Total, block: str
    ) -> tuple[Measured, np.ndarray]:
        measures = []
        norms = []
        room = torch.empty(
            (min(self._together(), len(x)) or 1, self.width(block)),
            dtype=self.dtype,
            device=self.device,
        )
        for measured, rows in self.record_gradient_pieces(
            theta, x, y, room, block=block
        ):
            measures.append(measured)
            norms.append(total.add(tensor_of(rows, self.device)))
        return concatenate_measures(measures), np.concatenate(
            norms or [total.add(room[:0])]
        )

    # Checks of sizes

    def _inputs(
        self, theta: Array, x: Array | Inputs, y: Array | None = None
    ) -> Inputs:
        inputs = self.prepared(x)
        _fitting(theta, (inputs.shape[0], self.net.weights), self.dtype)
        if y is not None:
            if tuple(y.shape[:2]) != inputs.shape[:2]:
                raise ValueError(
                    f"{list(inputs.shape[:2])} records need as many labels, not"
                    f" {list(y.shape)}"
                )
            self._check_labels(y)
        return inputs

    def _check_records(self, theta: Array, x: Array, y: Array) -> None:
        self._check_sizes(theta, x, y)
        if self.net.extra:
            raise ValueError(
                f"record gradients cover weights alone, not {sorted(self.net.extra)}"
            )

    def _check_sizes(self, theta: Array, x: Array, y: Array) -> None:
        if tuple(x.shape[1:]) != self.net.input_shape:
            raise ValueError(
                f"records must be [n, {self.net.input_shape}], not {list(x.shape)}"
            )
        _fitting(theta, (self.net.dimension,), self.dtype)
        if len(y) != len(x):
            raise ValueError(
                f"{len(x)} records need as many labels, not {list(y.shape)}"
            )
        self._check_labels(y)

    def _check_labels(self, y: Array) -> None:
        if y.dtype not in (np.int64, torch.int64):
            raise ValueError(f"labels must be int64, not {y.dtype}")
        if isinstance(y, torch.Tensor):
            if y.is_cuda:
                return  # torch reports it
            y = y.numpy()
        if y.size and not 0 <= y.min() <= y.max() < self.net.outputs:
            raise ValueError(f"labels must be 0 to {self.net.outputs - 1}")


class Choice(NamedTuple):
    """An implementation for a network on a device.

    `name` is recorded by the run. `make` creates an instance. `tasks` is the number of
    tasks that a CPU thread gets at once; no bit of a result depends on it.
    """

    name: str
    make: Callable[[], Gradients]
    device: str
    tasks: int = 1

    def chunk(self, threads: int) -> int:
        """Return the number of tasks to gather at once, for threads or for a GPU."""
        return 8 * max(1, threads) if self.device == "cpu" else 256


def device_of(asked: str) -> str:
    """Return the device of training: "cpu" or "cuda".

    "auto" selects a GPU if there is one.

    Raises:
        BenchError: a GPU is asked for and torch finds none.
    """
    if asked == "cuda" and not torch.cuda.is_available():
        raise BenchError(
            f"machine.device is cuda, but torch finds no GPU on {platform.node()}: use"
            " a machine or a node that has one, or set machine.device to auto"
        )
    return "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"


class Workers(Threads[Worker]):
    """One gradient worker per CPU thread, or a single worker on a GPU.

    A CPU worker computes few tasks at a time, a GPU worker many.

    Args:
        choice: the implementation.
        make: makes a worker from its gradients.
        threads: number of CPU threads.

    Attributes:
        chunk: number of tasks to gather at once.
    """

    def __init__(
        self, choice: Choice, make: Callable[[Gradients], Worker], *, threads: int = 1
    ) -> None:
        self.name = choice.name
        self.device = choice.device
        on_cpu = choice.device == "cpu"
        super().__init__(threads if on_cpu else 1, lambda: make(choice.make()))
        self.chunk = choice.chunk(threads)
        self._tasks = choice.tasks

    def split(self, count: int) -> list[slice]:
        """Split the tasks 0 to count - 1 into pieces for the workers.

        A piece has as many tasks as a worker computes at once, or fewer if a thread
        would otherwise be idle.
        """
        size = (
            min(self._tasks, -(-count // self.count)) if self.device == "cpu" else count
        )
        return [
            slice(start, min(start + size, count))
            for start in range(0, count, max(1, size))
        ]


def concatenate_measures(parts: list[Measured]) -> Measured:
    """Concatenate the measures of several pieces."""
    return Measured(
        *(np.concatenate([np.empty(0), *(part[k] for part in parts)]) for k in range(3))
    )


def _fitting(array: Array, shape: tuple[int, ...], dtype: object) -> Array:
    """Check an array's shape, its type and that its rows are contiguous."""
    if tuple(array.shape) != shape or _name(array.dtype) != _name(dtype):
        raise ValueError(
            f"gradients need {_name(dtype)} {list(shape)}, not {_name(array.dtype)}"
            f" {list(array.shape)}"
        )
    step = (
        array.stride(-1)
        if isinstance(array, torch.Tensor)
        else array.strides[-1] // array.itemsize
    )
    if step != 1 and min(shape) > 0 and shape[-1] > 1:
        raise ValueError("gradients need arrays with contiguous rows")
    return array


@functools.cache  # called several times per task; numpy builds the name anew each time
def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
