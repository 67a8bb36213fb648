"""Gradients of any module by torch.

On a CPU, tasks are differentiated one by one. On a GPU, a chunk of tasks is
differentiated at once by `torch.func.vmap`, with convolutions as matrix products
(`patches`). The gradients of single records come from `vmap`, else from Opacus'
`GradSampleModule` for a module that `vmap` does not support, else from one backward
pass per record. The first two are tried on a few drawn records; the first one that
agrees with the last is used.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from dpfedbench.errors import BenchError
from dpfedbench.models.gradients import (
    Gradients,
    Inputs,
    Measured,
    Point,
    concatenate_measures,
)
from dpfedbench.models.net import Array, Net, tensor_of
from dpfedbench.models.one_by_one import OneByOne
from dpfedbench.models.patches import ConvolutionsAsProducts

if TYPE_CHECKING:
    import opacus
else:
    from dpsum.lazy import Lazy

    opacus = Lazy("opacus")  # slow to import, with warnings

_FLOATS = {"cpu": 2**24, "cuda": 2**28}
"""Approximate number of values in memory at once: 64 MiB on a CPU, 1 GiB on a GPU."""

_MOST = {"cpu": 128, "cuda": 1024}
"""Largest number of records or tasks that are computed at once."""

_EVALUATED = 256
"""Number of records of a forward pass without derivatives."""


_Rows = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]
"""Gradients [n, ...] for each tensor of the module, and the records' measures [n]."""


class TorchGradients(Gradients):
    """Gradients of any module. The arguments are those of `Gradients`.

    Attributes:
        as_products: whether convolutions are products of matrices when several tasks or
            records are computed at once.
    """

    name = "torch"

    def __init__(
        self, net: Net, *, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(net, device=device, dtype=dtype)
        self._kind = torch.device(device).type
        self.as_products = self._kind == "cuda"
        self._like = torch.empty(0, device=device, dtype=dtype)
        self._limit = _MOST[self._kind]

    @property
    def way(self) -> str:
        """Name of the computation of records' gradients.

        It is "torch" (`vmap`), "torch-opacus" or "torch-loop".
        """
        return "torch" if self.net.mixes_records else self._way[0]

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

    def _together(self) -> int:
        return max(1, min(self._limit, _FLOATS[self._kind] // self._per_record))

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

    def _measures(
        self,
        theta: torch.Tensor | Mapping[str, torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        measures: tuple[torch.Tensor, ...] = self.net.apply(
            "measures", theta, x, y, call=self._call
        )
        return measures

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
        return _AllAtOnce(self, weights, x.value, labels, out)

    def _logits(self, theta: Array, x: Inputs) -> Array:
        with torch.no_grad():
            rows = [
                self.net.apply("forward", weights, records, call=self._call)
                for weights, records in zip(self._theta(theta), x.value, strict=True)
            ]
        return torch.stack(rows).cpu().numpy()

    def _task_loss(
        self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return the mean loss, and a pair of the mean loss and the accuracy."""
        losses, right, of = self._measures(theta, x, y)
        loss = losses.mean()
        return loss, (loss, right.sum() / of.sum())

    @functools.cached_property
    def _vmaps_tasks(self) -> bool:
        """Whether second derivatives of several tasks can be computed at once."""
        weights, x, y = self._example()
        theta = weights.expand(2, -1)
        try:
            point = _AllAtOnce(
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
    ) -> Measured:
        self.net.refuse_record_level()
        names = (
            self.net.named_blocks[block] if block else self.net.tensor_names
        )  # the block's tensors are contiguous in the flat vector
        measures = list[Measured]()
        rows = torch.as_tensor(out)
        weights = self._theta(theta)
        sizes = [
            size
            for name, size in zip(self.net.tensor_names, self.net.sizes, strict=True)
            if name in names
        ]

        def piece(some: slice) -> None:
            inputs = self.net.inputs(x[some], self._like)
            gradients, measured = self._way[1](
                weights, inputs, tensor_of(y[some], self.device), names
            )
            for part, gradient in zip(
                rows[some].split(sizes, dim=1), gradients, strict=True
            ):
                part.copy_(gradient.flatten(1))
            measures.append(_measured(measured))

        self._in_pieces(piece, len(x))
        return concatenate_measures(measures)

    @functools.cached_property
    def _way(self) -> tuple[str, Any]:
        """Return the first computation of records' gradients that works, with its name."""
        theta, x, y = self._example()
        names = self.net.tensor_names
        expected, _ = self._by_loop(theta, x, y, names)
        for name, way in (("torch", self._by_vmap), ("torch-opacus", self._by_opacus)):
            try:
                rows, _ = way(theta, x, y, names)
            except (
                Exception
            ):  # torch and Opacus raise anything for unsupported operations
                continue
            differences = [
                (row - reference).norm()
                for row, reference in zip(rows, expected, strict=True)
            ]
            if max(differences) <= 1e-3 * max(
                reference.norm() for reference in expected
            ):
                return name, way
        return "torch-loop", self._by_loop

    def _by_vmap(
        self,
        theta: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        names: Sequence[str],
    ) -> _Rows:
        tensors = self.net.tensors(theta)

        def loss(
            weights: Mapping[str, torch.Tensor],
            record: torch.Tensor,
            label: torch.Tensor,
        ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
            measures = tuple(
                measure[0]
                for measure in self._measures(
                    {**tensors, **weights}, record[None], label[None]
                )
            )
            return measures[0], measures

        rows, measured = self._at_once(
            torch.func.grad(loss, has_aux=True), (None, 0, 0)
        )({name: tensors[name] for name in names}, x, y)
        return list(rows.values()), measured

    def _by_opacus(
        self,
        theta: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        names: Sequence[str],
    ) -> _Rows:
        module, plain = self._sampled
        with torch.no_grad():
            for parameter, value in zip(
                plain.parameters(), self.net.tensors(theta).values(), strict=True
            ):
                parameter.copy_(value)
        module.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            measured = module("measures", x, y)
            measured[0].sum().backward()
        rows = zip(self.net.tensor_names, plain.parameters(), strict=True)
        return [parameter.grad_sample for name, parameter in rows if name in names], [
            part.detach() for part in measured
        ]

    @functools.cached_property
    def _sampled(self) -> tuple[Any, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = self.net.callable(self.device, self.dtype).requires_grad_(True)
            return opacus.GradSampleModule(plain, loss_reduction="sum"), plain

    def _by_loop(
        self,
        theta: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        names: Sequence[str],
    ) -> _Rows:
        rows = []
        measures = []
        with torch.enable_grad():
            tensors = {
                name: part.detach() for name, part in self.net.tensors(theta).items()
            }
            leaves = [tensors[name].requires_grad_() for name in names]
            for i in range(len(x)):
                measured = self._measures(tensors, x[i : i + 1], y[i : i + 1])
                rows.append(torch.autograd.grad(measured[0].sum(), leaves))
                measures.append([part.detach() for part in measured])
        stacked = [torch.stack(parts) for parts in zip(*rows, strict=True)]
        return stacked, [torch.cat(parts) for parts in zip(*measures, strict=True)]

    def _evaluate(self, theta: Array, x: Array, y: Array) -> Measured:
        weights = self._theta(theta)
        measures = []
        size = len(x) if self.net.mixes_records else _EVALUATED
        with torch.no_grad():
            for start in range(0, len(x), size or 1):
                records = slice(start, start + size)
                measured = self._measures(
                    weights,
                    self.net.inputs(x[records], self._like),
                    tensor_of(y[records], self.device),
                )
                measures.append(_measured(measured))
        return concatenate_measures(measures)


class _AllAtOnce(Point):
    """Tasks that are differentiated all at once.

    Only the weights are kept between calls.
    """

    def __init__(
        self,
        owner: TorchGradients,
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

        def piece(some: slice, *at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            rows[some], measures = owner._at_once(
                torch.func.grad(owner._task_loss, has_aux=True)
            )(*at)
            return measures

        self.losses, self.accuracies = self._in_pieces(piece)

    def _in_pieces(
        self, compute: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return losses and accuracies of all tasks.

        `compute` gets a slice of the tasks, and their weights, records and labels.
        """
        measures = list[tuple[torch.Tensor, torch.Tensor]]()
        theta, x, y = self._at
        self._owner._in_pieces(
            lambda some: measures.append(compute(some, theta[some], x[some], y[some])),
            len(theta),
            x.shape[1],
        )
        losses, accuracies = (
            torch.cat(parts).double().cpu().numpy()
            for parts in zip(*measures, strict=True)
        )
        return losses, accuracies

    def _product(self, direction: Array, out: Array) -> None:
        rows = torch.as_tensor(out)
        along = tensor_of(direction, self._at[0].device)

        def slope(
            theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, v: torch.Tensor
        ) -> tuple[torch.Tensor, Any]:
            gradient, measures = torch.func.grad(self._owner._task_loss, has_aux=True)(
                theta, x, y
            )
            return gradient @ v, measures

        def piece(some: slice, *at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            rows[some], measures = self._owner._at_once(
                torch.func.grad(slope, has_aux=True)
            )(*at, along[some])
            return measures

        self._in_pieces(piece)


@functools.cache
def _attention_of_products() -> None:
    """Switch off torch's fused attention kernels, which have no second derivatives."""
    torch.backends.cuda.enable_flash_sdp(False)  # affects the CPU as well
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


@functools.cache
def _say_once(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _measured(measured: Sequence[torch.Tensor]) -> Measured:
    return Measured(*(part.double().cpu().numpy() for part in measured))
