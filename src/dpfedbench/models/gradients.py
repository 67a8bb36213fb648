"""Gradients that training needs from a model: of tasks, and of single records.

The loss of a task is the mean over its batch of records. T tasks are computed at once,
each with its own weights. `Gradients` checks sizes, and computes by torch. Hand-written
passes of some networks override its methods that start with an underscore.

On a CPU, torch differentiates tasks one by one. On a GPU, a chunk of tasks is
differentiated at once by `torch.func.vmap`, with convolutions as matrix products
(`patches`). The gradients of single records come from `vmap` of one record's gradient,
which also holds for weights that several layers share. `vmap` refuses a module whose
forward pass branches on values: its records are differentiated one by one.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from dpfedbench.errors import BenchError
from dpfedbench.models.net import Array, Net, tensor_of
from dpfedbench.models.patches import ConvolutionsAsProducts
from dpfedbench.models.points import OneByOne, Point, dtype_name, fitting

if TYPE_CHECKING:
    from dpsum.mechanism import Accumulator

_VALUES_ON_CPU = 2**24
"""Approximate number of values in a CPU's memory at once: 64 MiB of float32."""

_SHARE_OF_GPU = 1 / 4
"""Approximate share of a GPU's memory that is used at once."""

_MOST = {"cpu": 128, "cuda": 8192}
"""Largest number of records or tasks that are computed at once."""

_EVALUATED = 256
"""Number of records of a forward pass without derivatives."""


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


class Inputs(NamedTuple):
    """Records [T, n, ...], prepared once for several calls."""

    shape: tuple[int, ...]
    value: Any


class Gradients:
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

    Attributes:
        as_products: whether convolutions are products of matrices when several tasks or
            records are computed at once.

    Raises:
        BenchError: the module cannot be used (`Net.check`).
    """

    name = "torch"

    def __init__(
        self, net: Net, *, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.net = net
        self.device = device
        self.dtype = dtype
        self._kind = torch.device(device).type
        self.as_products = self._kind == "cuda"
        self._like = torch.empty(0, device=device, dtype=dtype)
        self._limit = _MOST[self._kind]

    @property
    def number(self) -> np.dtype:
        """`dtype` as a numpy type."""
        return np.dtype(dtype_name(self.dtype))

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
        """Compute mean loss and gradient of T tasks.

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
            fitting(out, tuple(theta.shape), self.dtype),
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
    ) -> np.ndarray | None:
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
            Mean loss of each query set, float64 [T]. None: the implementation has no
            such call.
        """
        return None

    def logits(self, theta: Array, x: Array | Inputs) -> Array:
        """Return logits [T, n, outputs] of records [T, n, ...] at weights [T, w]."""
        return self._logits(theta, self._inputs(theta, x))

    def record_gradients(
        self, theta: Array, x: Array, y: Array, out: Array, *, block: str = ""
    ) -> np.ndarray:
        """Write each record's gradient to `out` [n, d], and return their losses [n].

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
            theta, x, y, fitting(out, (len(x), self.width(block)), self.dtype), block
        )

    def summed_record_gradients(
        self, theta: Array, x: Array, y: Array, room: Array
    ) -> np.ndarray:
        """Return the sum of the records' gradients, float64 [d].

        Args:
            theta, x, y: as for `record_gradients`.
            room: buffer [m, d]. The gradients of m records at a time are added up first,
                while they are still in the processor's cache.
        """
        self._check_records(theta, x, y)
        fitting(room, (max(len(room), 1), self.net.dimension), self.dtype)
        return self._summed_record_gradients(theta, x, y, room)

    def add_record_gradients(
        self, theta: Array, x: Array, y: Array, total: Accumulator, *, block: str = ""
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add each record's gradient to a sum over weights, which may clip it.

        Args:
            theta, x, y, block: as for `record_gradients`.
            total: the sum, with as many coordinates as there are weights.

        Returns:
            The records' losses, and the norms of their gradients as the sum returns
            them, float64 [n] each.
        """
        self._check_records(theta, x, y)
        if total.dimension != self.width(block):
            raise ValueError(
                f"gradients need a sum of {self.width(block)} coordinates, not"
                f" {total.dimension}"
            )
        return self._add_record_gradients(theta, x, y, total, block)

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
        """
        if not block:
            return self.net.dimension
        coordinates = self.net.blocks[block]
        return int(coordinates.stop - coordinates.start)

    # Computation by torch, which hand-written passes override

    def _summed_record_gradients(
        self, theta: Array, x: Array, y: Array, room: Array
    ) -> np.ndarray:
        """Differentiate the mean loss of many records at once, without `room`."""
        weights = self._theta(theta)[None]
        gradient = torch.empty_like(weights)
        total = np.zeros(self.net.dimension)
        for start in range(0, len(x), self._together()):
            records = slice(start, start + self._together())
            labels = y[records]
            self.task_gradients(weights, x[records][None], labels[None], gradient)
            total += len(labels) * gradient[0].cpu().numpy().astype(np.float64)
        return total

    def _add_record_gradients(
        self, theta: Array, x: Array, y: Array, total: Accumulator, block: str
    ) -> tuple[np.ndarray, np.ndarray]:
        losses = [np.empty(0)]
        norms = []
        room = torch.empty(
            (min(self._together(), len(x)) or 1, self.width(block)),
            dtype=self.dtype,
            device=self.device,
        )
        for piece_losses, rows in self._pieces(theta, x, y, room, block):
            losses.append(piece_losses)
            norms.append(total.add(tensor_of(rows, self.device)))
        return np.concatenate(losses), np.concatenate(norms or [total.add(room[:0])])

    def _pieces(
        self, theta: Array, x: Array, y: Array, room: Array, block: str
    ) -> Iterator[tuple[np.ndarray, Array]]:
        """Yield losses and gradients of a few records at a time, in rows of `room`."""
        for start in range(0, len(x), len(room)):
            records = slice(start, start + len(room))
            rows = room[: len(x[records])]
            losses = self._record_gradients(theta, x[records], y[records], rows, block)
            yield losses, rows

    @property
    def way(self) -> str:
        """Name of the computation of records' gradients: "torch", or "torch-loop" where
        records are differentiated one by one.
        """
        if self.net.mixes_records or self._vmaps_records:
            return "torch"
        return "torch-loop"

    @functools.cached_property
    def _call(self) -> nn.Module:
        """The module with this device and type, checked."""
        self.net.check()
        return self.net.callable(self.device, self.dtype)

    @functools.cached_property
    def _per_record(self) -> int:
        """Approximate number of values in memory for one record's derivatives.

        It counts the weights and the outputs of the layers.
        """
        theta, x, y = self.net.example(1)
        return 3 * self.net.weights + 6 * sum(
            out.numel() for _, out in self.net.layers(theta, x, y)
        )

    @functools.cached_property
    def _values_at_once(self) -> int:
        """Approximate number of values in memory at once."""
        if self._kind == "cpu":
            return _VALUES_ON_CPU
        memory = torch.cuda.get_device_properties(self.device).total_memory
        return int(_SHARE_OF_GPU * memory / self._like.element_size())

    def _together(self) -> int:
        return max(1, min(self._limit, self._values_at_once // self._per_record))

    def _in_pieces(
        self, compute: Callable[[slice], None], count: int, records: int = 1
    ) -> None:
        """Apply `compute` to all tasks, one piece at a time.

        If the device runs out of memory, the piece is halved and computed again. Later
        pieces are not larger.

        Args:
            compute: function of a slice of the tasks.
            count: number of tasks.
            records: number of records per task.

        Raises:
            BenchError: there is not enough memory for one task.
        """
        start = 0
        while start < count:
            size = min(max(1, self._together() // records), count - start)
            try:
                compute(slice(start, start + size))
            except torch.OutOfMemoryError as error:
                if size == 1:
                    needed = (
                        self._per_record * records * self._like.element_size() / 2**20
                    )
                    contribution = (
                        "record" if records == 1 else f"task of {records} records"
                    )
                    raise BenchError(
                        f"one {contribution} of this network takes about {needed:,.0f} MiB on"
                        f" {self.device}, but less is free: use a smaller model or"
                        " task, end other programs on the device, or set"
                        " machine.device to cpu"
                    ) from error
                self._limit = max(1, size // 2 * records)
                _say_once(
                    f"notice: {self.device} is out of memory: {size // 2} at once"
                    f" instead of {size} from here on"
                )
                if self._kind == "cuda":
                    torch.cuda.empty_cache()
                continue
            start += size

    def _theta(self, theta: Array) -> torch.Tensor:
        return tensor_of(theta, self.device).to(self.dtype)

    def _example(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return weights, records and labels on the device, for a trial."""
        theta, x, y = (array.to(self.device) for array in self.net.example())
        return theta.to(self.dtype), x.to(self.dtype) if x.is_floating_point() else x, y

    def _at_once(self, function: Callable[..., Any], *sizes: Any) -> Callable[..., Any]:
        """Return `torch.func.vmap` of a function.

        Convolutions have the form that suits the device.
        """
        batched = torch.func.vmap(function, *sizes)

        def call(*arguments: Any) -> Any:
            with (
                ConvolutionsAsProducts()
                if self.as_products
                else contextlib.nullcontext()
            ):
                return batched(*arguments)

        return call

    # Tasks

    def _prepared(self, x: Array) -> Any:
        return self.net.inputs(x, self._like)

    def _task_gradients(
        self,
        theta: Array,
        x: Inputs,
        y: Array,
        out: Array,
        products: bool,
        into: Point | None,
    ) -> Point:
        if products:
            _attention_of_products()
        weights = self._theta(theta)
        labels = tensor_of(y, self.device)
        if self._kind == "cpu" or not self._vmaps_tasks:
            return OneByOne(
                self.net, self._call, weights, x.value, labels, out, products, into
            )
        return AllAtOnce(self, weights, x.value, labels, out)

    def _logits(self, theta: Array, x: Inputs) -> Array:
        with torch.no_grad():
            rows = [
                self.net.apply("forward", weights, records, call=self._call)
                for weights, records in zip(self._theta(theta), x.value, strict=True)
            ]
        return torch.stack(rows).cpu().numpy()

    def _task_loss(
        self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean loss twice: to differentiate it, and to report it."""
        loss = self.net.apply("losses", theta, x, y, call=self._call).mean()
        return loss, loss

    @functools.cached_property
    def _vmaps_tasks(self) -> bool:
        """Whether second derivatives of several tasks can be computed at once."""
        weights, x, y = self._example()
        theta = weights.expand(2, -1)
        try:
            point = AllAtOnce(
                self,
                theta,
                torch.stack([x, x]),
                torch.stack([y, y]),
                torch.empty_like(theta),
            )
            point.product(theta, torch.empty_like(theta))
        except RuntimeError:
            return False
        return True

    # Records

    def _record_gradients(
        self, theta: Array, x: Array, y: Array, out: Array, block: str
    ) -> np.ndarray:
        self.net.refuse_record_level()
        names = (
            self.net.named_blocks[block] if block else self.net.tensor_names
        )  # the block's tensors are contiguous in the flat vector
        losses = [np.empty(0)]
        rows = torch.as_tensor(out)
        weights = self._theta(theta)
        sizes = [
            size
            for name, size in zip(self.net.tensor_names, self.net.sizes, strict=True)
            if name in names
        ]

        def piece(some: slice) -> None:
            gradients, piece_losses = self._gradients_of_records(
                weights,
                self.net.inputs(x[some], self._like),
                tensor_of(y[some], self.device),
                names,
                at_once=self._vmaps_records,
            )
            for part, gradient in zip(
                rows[some].split(sizes, dim=1), gradients, strict=True
            ):
                part.copy_(gradient.flatten(1))
            losses.append(_double(piece_losses))

        self._in_pieces(piece, len(x))
        return np.concatenate(losses)

    @functools.cached_property
    def _vmaps_records(self) -> bool:
        """Whether the gradients of several records can be computed at once."""
        names = self.net.tensor_names
        try:
            self._gradients_of_records(*self._example(), names, at_once=True)
        except Exception:  # torch raises anything for unsupported operations
            return False
        return True

    def _gradients_of_records(
        self,
        theta: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        names: Sequence[str],
        *,
        at_once: bool,
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return records' gradients [n, ...] in the named tensors, and losses [n]."""
        tensors = self.net.tensors(theta)
        call = self._call

        def loss(
            weights: Mapping[str, torch.Tensor],
            record: torch.Tensor,
            label: torch.Tensor,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            (loss,) = self.net.apply(
                "losses",
                {**tensors, **weights},
                record[None],
                label[None],
                call=call,
            )
            return loss, loss

        weights = {name: tensors[name] for name in names}
        gradient = torch.func.grad(loss, has_aux=True)
        if at_once:
            rows, losses = self._at_once(gradient, (None, 0, 0))(weights, x, y)
            return list(rows.values()), losses
        pairs = [gradient(weights, *record) for record in zip(x, y, strict=True)]
        stacked = [torch.stack([rows[name] for rows, _ in pairs]) for name in names]
        return stacked, torch.stack([loss for _, loss in pairs])

    def _evaluate(self, theta: Array, x: Array, y: Array) -> Measured:
        weights = self._theta(theta)
        measures = []
        size = len(x) if self.net.mixes_records else _EVALUATED
        with torch.no_grad():
            for start in range(0, len(x), size or 1):
                records = slice(start, start + size)
                measured = self.net.apply(
                    "measures",
                    weights,
                    self.net.inputs(x[records], self._like),
                    tensor_of(y[records], self.device),
                    call=self._call,
                )
                measures.append(Measured(*map(_double, measured)))
        columns = (
            np.concatenate([np.empty(0), *(part[k] for part in measures)])
            for k in range(3)
        )
        return Measured(*columns)

    # Checks of sizes

    def _inputs(
        self, theta: Array, x: Array | Inputs, y: Array | None = None
    ) -> Inputs:
        inputs = self.prepared(x)
        fitting(theta, (inputs.shape[0], self.net.weights), self.dtype)
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
        fitting(theta, (self.net.dimension,), self.dtype)
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


@functools.cache
def _attention_of_products() -> None:
    """Switch off torch's fused attention kernels, which have no second derivatives."""
    torch.backends.cuda.enable_flash_sdp(False)  # affects the CPU as well
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


@functools.cache
def _say_once(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _double(values: torch.Tensor) -> np.ndarray:
    return values.double().cpu().numpy()


class AllAtOnce(Point):
    """Tasks that are differentiated all at once.

    Only the weights are kept between calls.
    """

    def __init__(
        self,
        owner: Gradients,
        theta: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        out: Array,
    ) -> None:
        super().__init__(theta)
        owner._call  # noqa: B018
        self._owner = owner
        self._at = (theta.clone(), x, y)
        rows = torch.as_tensor(out)

        def piece(some: slice, *at: torch.Tensor) -> torch.Tensor:
            rows[some], losses = owner._at_once(
                torch.func.grad(owner._task_loss, has_aux=True)
            )(*at)
            return losses

        self.losses = self._in_pieces(piece)

    def _in_pieces(self, compute: Callable[..., torch.Tensor]) -> np.ndarray:
        """Return the losses of all tasks.

        `compute` gets a slice of the tasks, and their weights, records and labels.
        """
        losses = list[torch.Tensor]()
        theta, x, y = self._at
        self._owner._in_pieces(
            lambda some: losses.append(compute(some, theta[some], x[some], y[some])),
            len(theta),
            x.shape[1],
        )
        return torch.cat(losses).double().cpu().numpy()

    def _product(self, direction: Array, out: Array) -> None:
        rows = torch.as_tensor(out)
        along = tensor_of(direction, self._at[0].device)

        def slope(
            theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, v: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            gradient, losses = torch.func.grad(self._owner._task_loss, has_aux=True)(
                theta, x, y
            )
            return gradient @ v, losses

        def piece(some: slice, *at: torch.Tensor) -> torch.Tensor:
            rows[some], losses = self._owner._at_once(
                torch.func.grad(slope, has_aux=True)
            )(*at, along[some])
            return losses

        self._in_pieces(piece)
