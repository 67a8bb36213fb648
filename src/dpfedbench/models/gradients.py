"""The gradients that training needs from a model: of tasks, and of single records.

The loss of a task is the mean over its batch of records. T tasks are computed at once,
each with its own weights. Sizes are checked here, for all implementations; the
implementations' own methods start with an underscore.
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
    """Losses, right answers, and of how many answers, of n records: float64 [n]
    each.
    """

    losses: np.ndarray
    right: np.ndarray
    of: np.ndarray

    @property
    def loss(self) -> float:
        """Mean over the records."""
        return float(self.losses.mean())

    @property
    def accuracy(self) -> float:
        """Share of right answers, 0 to 1."""
        return float(self.right.sum() / self.of.sum())


class Total(Protocol):
    """A sum over weights that gradients are added to, as `privacy.private_sum`'s."""

    @property
    def dimension(self) -> int: ...

    def add(self, contributions: torch.Tensor) -> np.ndarray:
        """Add rows [n, d]; their norms [n]."""
        ...

    def add_by(
        self, add: Callable[[float, np.ndarray, np.ndarray], None], count: int
    ) -> np.ndarray:
        """Let a compiled loop add `count` rows; their norms."""
        ...


class Inputs(NamedTuple):
    """Records [T, n, ...] made ready for several calls."""

    shape: tuple[int, ...]
    value: Any


class Point(ABC):
    """T tasks at their weights, with what Hessian products there need.

    The weights may not be written to before the products are computed.

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
        """Say each task's measures."""
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
    """A network's gradients by one implementation, for the use of one thread.

    Arrays may be numpy's or torch's; what is written to is torch's on the device, or
    numpy's on a CPU. Records are uint8 or float in [0, 1] (images) or int64 (tokens),
    labels int64. d counts all coordinates of the flat vector, w those of the module
    (`Net.weights`). Where a `block` of the network (`Net.blocks`) is named, records'
    gradients are those of its coordinates alone: d is their number wherever gradients
    are written or added up, and `theta` is whole.

    Args:
        net: the network.
        device: "cpu" or a CUDA device.
        dtype: of the weights: float32, or float64 for tests.

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
        """numpy's name of `dtype`."""
        return np.dtype(_name(self.dtype))

    def prepared(self, x: Array | Inputs) -> Inputs:
        """Records [T, n, ...] made ready for several calls of `at` and `logits`.

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

    def at(
        self,
        theta: Array,
        x: Array | Inputs,
        y: Array,
        out: Array,
        *,
        products: bool = False,
        into: Point | None = None,
    ) -> Point:
        """Mean loss, accuracy and gradient of T tasks, and a point at which Hessian
        products can be computed.

        Args:
            theta: weights of each task [T, w].
            x, y: records [T, n, ...] and labels [T, n, ...].
            out: where each task's gradient is written [T, w].
            products: whether `Point.product` will be asked for.
            into: a point that is no longer needed, whose memory is used again.

        Raises:
            ValueError: the sizes do not fit together.
        """
        inputs = self._inputs(theta, x, y)
        return self._at(
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
        """MAML's gradient in one call, where the implementation has it: see
        `MetaGradient`, which does without.

        Args:
            theta: weights of all tasks [w].
            support, support_y, query, query_y: records and labels of T tasks, as for
                `at`.
            rates: of each step, for all weights [K, 1] or for each [K, w].
            second: whether the gradient is carried back through the steps.
            out: where each task's gradient is written [T, w].

        Returns:
            Mean loss and share of right answers of each query set, float64 [T]; None:
            there is no such call.
        """
        return None

    def logits(self, theta: Array, x: Array | Inputs) -> Array:
        """Logits [T, n, outputs] of records [T, n, ...] at weights [T, w]."""
        return self._logits(theta, self._inputs(theta, x))

    def each(
        self, theta: Array, x: Array, y: Array, out: Array, *, block: str = ""
    ) -> Measured:
        """Write each record's gradient to `out` [n, d].

        Args:
            theta: weights [d] of a network without `extra` tensors.
            x, y: records [n, ...] and labels [n, ...].
            block: of the network, whose gradients alone are computed.

        Raises:
            ValueError: the sizes do not fit together.
            BenchError: a record of this network has no gradient of its own.
        """
        self._check_records(theta, x, y)
        return self._each(
            theta, x, y, _fitting(out, (len(x), self.width(block)), self.dtype), block
        )

    def pieces(
        self, theta: Array, x: Array, y: Array, room: Array, *, block: str = ""
    ) -> Iterator[tuple[Measured, Array]]:
        """The same, a few records at a time: their gradients are in the cache when they
        are used.

        Args:
            theta, x, y, block: as for `each`.
            room: [m, d], written again and again.

        Yields:
            Measures and gradients, the first k <= m rows of the room, of the next k
            records.
        """
        self._check_records(theta, x, y)
        _fitting(room, (max(len(room), 1), self.width(block)), self.dtype)
        for start in range(0, len(x), len(room)):
            records = slice(start, start + len(room))
            rows = room[: len(x[records])]
            yield self._each(theta, x[records], y[records], rows, block), rows

    def added(self, theta: Array, x: Array, y: Array, room: Array) -> np.ndarray:
        """The sum of the records' gradients, float64 [d]; arguments as of `pieces`,
        whose rows are added up first.
        """
        total = np.zeros(self.net.dimension)
        for _, rows in self.pieces(theta, x, y, room):
            total += tensor_of(rows, "cpu").numpy().sum(axis=0)
        return total

    def add_each(
        self, theta: Array, x: Array, y: Array, total: Total, *, block: str = ""
    ) -> tuple[Measured, np.ndarray]:
        """Add each record's gradient to a sum over weights, clipped if that clips.

        Args:
            theta, x, y, block: as for `each`.
            total: of as many coordinates as there are weights.

        Returns:
            The records' measures, and their gradients' norms, float64 [n], as the sum
            gives them.
        """
        self._check_records(theta, x, y)
        if total.dimension != self.width(block):
            raise ValueError(
                f"gradients need a sum of {self.width(block)} coordinates, not"
                f" {total.dimension}"
            )
        if block or getattr(total, "as_rows", False):
            return self._add_pieces(theta, x, y, total, block)
        return self._add_each(theta, x, y, total)

    def evaluate(self, theta: Array, x: Array, y: Array) -> Measured:
        """Losses and right answers of records [n, ...] at weights [d], without
        gradients.
        """
        self._check_sizes(theta, x, y)
        return self._evaluate(theta, x, y)

    def width(self, block: str = "") -> int:
        """Coordinates of a record's gradient, of a block or of all.

        Raises:
            ValueError: the network has no such block.
        """
        if not block:
            return self.net.dimension
        if block not in self.net.blocks:
            raise ValueError(
                f"the network's blocks are {sorted(self.net.blocks)}: there is no"
                f" {block!r}"
            )
        coordinates = self.net.blocks[block]
        return int(coordinates.stop - coordinates.start)

    # What the implementations do

    @staticmethod
    def tasks(net: Net) -> int:
        """Number of tasks that a CPU thread should compute at once."""
        return 1

    @abstractmethod
    def _prepared(self, x: Array) -> Any: ...

    @abstractmethod
    def _at(
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
    def _each(
        self, theta: Array, x: Array, y: Array, out: Array, block: str
    ) -> Measured: ...

    @abstractmethod
    def _evaluate(self, theta: Array, x: Array, y: Array) -> Measured: ...

    @abstractmethod
    def _together(self) -> int:
        """Records whose gradients are computed at once."""

    def _add_each(
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
        for measured, rows in self.pieces(theta, x, y, room, block=block):
            measures.append(measured)
            norms.append(total.add(tensor_of(rows, self.device)))
        return joined(measures), np.concatenate(norms or [total.add(room[:0])])

    # Sizes

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
                "gradients of records are for weights alone, not"
                f" {sorted(self.net.extra)}"
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
                return  # torch says so itself
            y = y.numpy()
        if y.size and not 0 <= y.min() <= y.max() < self.net.outputs:
            raise ValueError(f"labels must be 0 to {self.net.outputs - 1}")


class Choice(NamedTuple):
    """An implementation for a network on a device: its name, which a run records, and
    what makes a new one.

    `tasks`: how many tasks a CPU thread is given at once; no bit of a result depends on
    it.
    """

    name: str
    make: Callable[[], Gradients]
    device: str
    tasks: int = 1

    def chunk(self, threads: int) -> int:
        """Tasks to gather at once for so many CPU threads, or for a GPU."""
        return 8 * max(1, threads) if self.device == "cpu" else 256


def device_of(asked: str) -> str:
    """Return the device of training: "cpu" or "cuda"; "auto" is a GPU where there is
    one.

    Raises:
        BenchError: a GPU asked for and not there.
    """
    if asked == "cuda" and not torch.cuda.is_available():
        raise BenchError(
            f"machine.device is cuda, but torch finds no GPU on {platform.node()}: use"
            " a machine or a node that has one, or set machine.device to auto"
        )
    return "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"


class Workers(Threads[Worker]):
    """Gradients for each CPU thread, which compute few tasks at a time; or one on a
    GPU, which computes many at once.

    Args:
        choice: the implementation.
        make: what a worker is, given its gradients.
        threads: CPU threads.

    Attributes:
        chunk: tasks to gather at once.
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
        """The tasks 0 to count - 1, as many together as a worker computes at once;
        fewer where a thread would wait.
        """
        size = (
            min(self._tasks, -(-count // self.count)) if self.device == "cpu" else count
        )
        return [
            slice(start, min(start + size, count))
            for start in range(0, count, max(1, size))
        ]


def joined(parts: list[Measured]) -> Measured:
    """The measures of several pieces."""
    return Measured(
        *(np.concatenate([np.empty(0), *(part[k] for part in parts)]) for k in range(3))
    )


def _fitting(array: Array, shape: tuple[int, ...], dtype: object) -> Array:
    """The array, if it is of this shape and type, and its rows lie in one piece."""
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
        raise ValueError("gradients need arrays whose rows lie in one piece of memory")
    return array


@functools.cache  # asked for several times a task; numpy makes the name anew each time
def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
