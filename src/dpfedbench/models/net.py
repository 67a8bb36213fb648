"""A model: any `torch.nn.Module` over one flat vector of weights.

The vector theta holds the module's parameters in the order of `named_parameters`.
Behind them it holds further learnt values (`extra`, e.g. the rates of MAML++), which
the module does not see. Besides `forward(x)`, a module may define:

- `initial(rng) -> float32 [weights]`: its initial weights. Default: those that its
  constructor draws.
- `losses(x, y) -> [n]`: each record's loss. Default: cross-entropy of its logits [n,
  outputs].
- `correct(x, y) -> (right [n], of [n])`: each record's numbers of right answers and of
  answers. Default: one answer per record.
- `blocks`: names of its blocks and of each block's parameters, all of them in order.
  Default: no named blocks.
- `by_word`: names of the parameters that have one row per token. Default: none.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.models.refused_layers import (
    drawing,
    first_difference,
    place_of,
    remembering,
)
from dpsum.group_clipping import CoordinateGroups

Array = np.ndarray | torch.Tensor

_PROBED = 3
"""Number of records of a probe."""


class _Call(nn.Module):
    """Wrapper whose `forward` calls `losses` or `measures` of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, method: str, *arguments: torch.Tensor) -> Any:
        if method == "losses":
            return self._losses(*arguments)
        if method == "measures":
            return self._measures(*arguments)
        return self.module(*arguments)

    def _losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return losses [n]."""
        losses = getattr(self.module, "losses", None)
        if losses is not None:
            return losses(x, y)
        return functional.cross_entropy(self.module(x), y, reduction="none")

    def _measures(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return losses [n], right answers [n] and numbers of answers [n]."""
        losses, correct = (
            getattr(self.module, name, None) for name in ("losses", "correct")
        )
        logits = torch.empty(0) if losses and correct else self.module(x)
        record_losses = (
            losses(x, y)
            if losses
            else functional.cross_entropy(logits, y, reduction="none")
        )
        if correct:
            return record_losses, *correct(x, y)
        right = (logits.detach().argmax(dim=1) == y).to(record_losses.dtype)
        return record_losses, right, torch.ones_like(right)


def _layer_key(name: str) -> str:
    """Return the common part of the names of one layer's tensors."""
    module = name.rpartition(".")[0]
    number = name[len(name.rstrip("0123456789")) :]
    return module or number or name


class Net:
    """A torch module over one flat vector of weights.

    Args:
        build: makes a new module.
        input_shape: shape of a record: (height, width, channels) of an image, or
            (tokens,).
        outputs: number of logits of a record.
        extra: names and initial values of further learnt tensors.

    Attributes:
        vocabulary: number of tokens, which is also the number of logits. 0: records are
            images.
        words: the words of tokens 1, 2, ..., if a run on texts has set them.
    """

    words: tuple[str, ...] = ()

    def __init__(
        self,
        build: Callable[[], nn.Module],
        *,
        input_shape: tuple[int, ...],
        outputs: int,
        extra: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.build = build
        self.input_shape = tuple(input_shape)
        self.outputs = outputs
        self.extra = dict(extra or {})
        self.vocabulary = outputs if len(input_shape) == 1 else 0
        with _own_generator(0):
            self.module = build()
        self._module_shapes = {
            name: tuple(value.shape) for name, value in self.module.named_parameters()
        }
        self._call = _Call(self.module)
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        """Name of the module's class."""
        return type(self.module).__name__

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all tensors, in the order of the flat vector."""
        return self._module_shapes | {
            name: value.shape for name, value in self.extra.items()
        }

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Number of coordinates of each of the module's tensors."""
        return [math.prod(shape) for shape in self._module_shapes.values()]

    @functools.cached_property
    def weights(self) -> int:
        """Number of coordinates of the module, which come first."""
        return sum(self.sizes)

    @functools.cached_property
    def dimension(self) -> int:
        """Number of coordinates d of the whole vector."""
        return self.weights + sum(value.size for value in self.extra.values())

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the module's tensors, without further learnt tensors."""
        return tuple(self._module_shapes)

    @property
    def by_word(self) -> tuple[str, ...]:
        """Names of the module's tensors that have one row per token."""
        return tuple(getattr(self.module, "by_word", ()))

    @property
    def named_blocks(self) -> dict[str, tuple[str, ...]]:
        """Names of the module's blocks and of each block's tensors.

        Empty if the module defines no blocks.
        """
        blocks = {
            name: tuple(names)
            for name, names in getattr(self.module, "blocks", {}).items()
        }
        if blocks and [name for names in blocks.values() for name in names] != list(
            self._module_shapes
        ):
            raise BenchError(
                f"model {self.name}: its blocks must name all its parameters in order"
            )
        return blocks

    @functools.cached_property
    def blocks(self) -> dict[str, slice]:
        """The module's blocks and their slices of the flat vector.

        Empty if the module defines no blocks.
        """
        blocks = self.named_blocks
        return dict(zip(blocks, self._slices(blocks.values()), strict=True))

    def _slices(self, groups: Iterable[Sequence[str]]) -> list[slice]:
        """Return each group's slice of the flat vector.

        Args:
            groups: names of the tensors of each group, all tensors in order.
        """
        slices = []
        start = 0
        for names in groups:
            stop = start + sum(math.prod(self.shapes[name]) for name in names)
            slices.append(slice(start, stop))
            start = stop
        return slices

    @property
    def head(self) -> tuple[str, ...]:
        """Names of the last layer's tensors.

        With blocks, it is the last layer of the first block.
        """
        names = next(iter(self.named_blocks.values()), tuple(self._module_shapes))
        layer = names[-1].rpartition(".")[0]
        return tuple(name for name in names if name.rpartition(".")[0] == layer)

    def mask(self, *names: str) -> np.ndarray:
        """Return a mask of the coordinates of tensors or modules, bool [d].

        Args:
            names: names of tensors, or of modules, which stand for all tensors below
                them. If the network has no module of that name, "head" is its last
                layer, "body" all but the head, and "all" everything.

        Raises:
            BenchError: the network has no tensor or module of a name.
        """
        mask = np.zeros(self.dimension, bool)
        for name in names:
            mask |= self._mask_of(name)
        return mask

    def _mask_of(self, name: str) -> np.ndarray:
        selected = [
            tensor == name or tensor.startswith(f"{name}.") for tensor in self.shapes
        ]
        if not any(selected):
            if name == "all":
                return np.ones(self.dimension, bool)
            if name == "body":
                return ~self._mask_of("head")
            if name == "head":
                selected = [tensor in self.head for tensor in self.shapes]
        if not any(selected):
            raise BenchError(
                f"model {self.name} has no tensor or module {name!r}: it has"
                f" {', '.join(self.shapes)}"
            )
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        return np.repeat(selected, sizes)

    def coordinate_groups(self, kind: str, noise: str) -> CoordinateGroups:
        """Return the groups of coordinates that are clipped separately.

        Args:
            kind: "tensors": one group per tensor. "layers": the tensors of one layer
                together, also the scale and shift of the normalisation behind it.
            noise: meaning of the noise multiplier, as for `CoordinateGroups`.
        """
        groups = [[name] for name in self.shapes]
        if kind == "layers":
            groups = self._layer_tensors()
        labels = [
            names[0].rpartition(".")[0] or names[0] if len(names) > 1 else names[0]
            for names in groups
        ]
        slices = dict(zip(labels, self._slices(groups), strict=True))
        return CoordinateGroups.from_slices(slices, self.dimension, noise=noise)

    def _layer_tensors(self) -> list[list[str]]:
        """Return the names of the tensors of each layer.

        A layer is a module that has a tensor of two dimensions or more. Tensors outside
        of modules belong together by the number at the end of their names. Modules of
        vectors alone (normalisation) belong to the layer before them.
        """
        keys = {name: _layer_key(name) for name in self.shapes}
        matrices = {keys[name] for name, shape in self.shapes.items() if len(shape) > 1}
        layers = list[list[str]]()
        key = None
        for name in self.shapes:
            starts_layer = name in self.extra or keys[name] in matrices
            if not layers or (keys[name] != key and starts_layer):
                layers.append([])
            layers[-1].append(name)
            key = keys[name]
        return layers

    def with_rates(self, steps: int, first: float) -> Net:
        """Return the network with a learnt rate per step and tensor (MAML++).

        Args:
            steps: number of inner steps.
            first: initial value of all rates.
        """
        rates = np.full((steps, len(self._module_shapes)), first, np.float32)
        return Net(
            self.build,
            input_shape=self.input_shape,
            outputs=self.outputs,
            extra=self.extra | {"rates": rates},
        )

    # Conversions between the flat vector and tensors

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Return the initial vector, float32 [d].

        The state of torch's global generator does not change.
        """
        draw = getattr(self.module, "initial", None)
        if draw is not None:
            weights = draw(rng)
        else:
            with _own_generator(int(rng.integers(2**62))):
                parameters = self.build().parameters()
            weights = nn.utils.parameters_to_vector(parameters).detach().numpy()
        extra = [value.ravel() for value in self.extra.values()]
        return np.concatenate([weights, *extra]).astype(np.float32)

    def tensors(self, theta: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the flat vector [d] as named tensors (views).

        For its first `weights` coordinates, these are the module's tensors alone.
        """
        shapes = self.shapes if theta.shape[-1] != self.weights else self._module_shapes
        parts = torch.split(
            theta, [math.prod(shape) for shape in shapes.values()], dim=-1
        )
        return {
            name: part.view(shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Any]) -> np.ndarray:
        """Return named tensors as a flat vector, float32 [d].

        Tensors that this network does not have are left out.

        Raises:
            BenchError: a tensor is missing, or has another shape.
        """
        parts = [tensors[name] for name in self.shapes if name in tensors]
        if [tuple(part.shape) for part in parts] != [*self.shapes.values()]:
            raise BenchError(
                "the tensors of the model file do not fit this network: delete the"
                " run's folder and run again"
            )
        return np.concatenate([np.asarray(part, np.float32).ravel() for part in parts])

    def with_fresh_head(self, theta: np.ndarray, old: Net) -> np.ndarray:
        """Return a vector [d] with the body of `theta`, bit for bit, and a zero head.

        The zero head leaves nothing of the old head. Further learnt tensors have their
        initial values.

        Args:
            theta: weights of `old`.
            old: the same network with any number of outputs.

        Raises:
            BenchError: the old network has another body.
        """
        body = {
            name: tensor.numpy()
            for name, tensor in old.tensors(torch.from_numpy(theta)).items()
        }
        fresh = {name: np.zeros(self.shapes[name], theta.dtype) for name in self.head}
        return self.flatten(body | self.extra | fresh)

    # The function, differentiable by torch

    def inputs(self, x: Array, like: torch.Tensor) -> torch.Tensor:
        """Return records as the module sees them, with the device and type of `like`.

        Images become [..., C, H, W] in [0, 1]. They have torch's usual memory layout,
        so that a module may call `view`. A module with `channels_last`, which makes
        convolutions on a CPU faster, gets that layout.
        """
        tensor = tensor_of(x, like.device)
        if self.vocabulary:
            return tensor
        scaled = (
            tensor.to(like.dtype) / 255
            if tensor.dtype == torch.uint8
            else tensor.to(like.dtype)
        )
        moved = scaled.movedim(-1, -3)
        if getattr(self.module, "channels_last", False):
            return moved
        # `contiguous` would keep the strides of a single channel, which torch takes for
        # channels last.
        return moved.clone(memory_format=torch.contiguous_format)

    def callable(self, device: str, dtype: torch.dtype) -> nn.Module:
        """Return a copy of the module for `apply`.

        Each thread needs its own copy, because a call puts the weights into it.
        """
        with self._lock:
            return (
                copy.deepcopy(self._call)
                .to(device=device, dtype=dtype)
                .requires_grad_(False)
            )

    def apply(
        self,
        method: str,
        theta: torch.Tensor | Mapping[str, torch.Tensor],
        *arguments: torch.Tensor,
        call: nn.Module | None = None,
    ) -> Any:
        """Call a method of the module on prepared records (`inputs`).

        Args:
            method: "forward", "losses" or "measures" (each record's loss, right answers
                and number of answers, [n] each).
            theta: weights [weights], flat or by name.
            arguments: records, and labels unless the method is "forward".
            call: a result of `callable`. None: the network's own module, which only one
                thread at a time may use.
        """
        tensors = (
            self.tensors(theta[: self.weights])
            if isinstance(theta, torch.Tensor)
            else theta
        )
        named = {f"module.{name}": tensor for name, tensor in tensors.items()}
        if call is not None:
            return torch.func.functional_call(call, named, (method, *arguments))
        with self._lock:
            return torch.func.functional_call(self._call, named, (method, *arguments))

    def logits(self, theta: torch.Tensor, x: Array) -> torch.Tensor:
        """Return the logits [n, outputs] of records x [n, ...] at theta [d]."""
        return self.apply("forward", theta, self.inputs(x, theta))

    def losses(self, theta: torch.Tensor, x: Array, y: Array) -> torch.Tensor:
        """Return each record's loss [n]."""
        labels = tensor_of(y, theta.device)
        return self.apply("losses", theta, self.inputs(x, theta), labels)

    # Checks of modules

    def example(
        self, records: int = _PROBED
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return weights [weights], prepared records and labels for a probe.

        They are the same at each call.
        """
        rng = np.random.default_rng(0)
        theta = torch.from_numpy(self.initial(rng)[: self.weights])
        theta += 0.1 * torch.from_numpy(
            rng.standard_normal(self.weights).astype(np.float32)
        )
        shape = (records, *self.input_shape)
        x = (
            rng.integers(self.vocabulary, size=shape)
            if self.vocabulary
            else rng.random(shape, np.float32)
        )
        answers = getattr(
            self.module, "answers", ()
        )  # shape of a record's label, if it is not a single number
        return (
            theta,
            self.inputs(x, theta),
            torch.from_numpy(rng.integers(self.outputs, size=(records, *answers))),
        )

    def check(self) -> None:
        """Refuse a module that cannot be used at all.

        Raises:
            BenchError: its forward pass fails on the records' shape or has another
                number of logits; it has running statistics, which would be a further
                release; or it draws random numbers.
        """
        return self._checked

    @functools.cached_property
    def _checked(self) -> None:
        for name, layer in self.module.named_modules():
            if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
                raise BenchError(drawing(name, layer))
            if getattr(layer, "running_mean", None) is not None:
                raise BenchError(remembering(name, layer))
        theta, x, y = self.example()
        buffers = {name: value.clone() for name, value in self.module.named_buffers()}
        passes = [self.layers(theta, x, y) for _ in range(2)]
        changed = [
            name
            for name, value in self.module.named_buffers()
            if not torch.equal(value, buffers[name])
        ]
        with torch.no_grad():
            for name, value in self.module.named_buffers():
                value.copy_(buffers[name])
        if changed:
            raise BenchError(remembering(changed[0].rpartition(".")[0], self.module))
        if (drawn := first_difference(*passes, of=slice(None))) is not None:
            raise BenchError(drawing(drawn, self.module))
        if not hasattr(self.module, "losses"):
            shape = tuple(passes[0][-1][1].shape)
            expected = (_PROBED, self.outputs)
            if shape != expected:
                raise BenchError(
                    f"model {self.name} gives an array {list(shape)} for {_PROBED}"
                    f" records, not logits {list(expected)}: a model with other"
                    " outputs, as of text, has to define losses and correct"
                )

    @functools.cached_property
    def mixes_records(self) -> str:
        """Return the layer that lets one record's loss depend on another record, or "".

        It checks the kinds of layers, and also changes one record and compares the
        outputs of another. (Opacus' validator refuses two kinds of layers for this
        reason: batch normalisation, and normalisation with running statistics, which
        `check` refuses.)
        """
        for name, layer in self.module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                return place_of(name, layer)
        theta, x, y = self.example()
        changed_x = x.clone()
        changed_x[-1] = (
            changed_x[-1].flip(-1) if self.vocabulary else 2 - changed_x[-1] ** 2
        )
        changed = first_difference(
            self.layers(theta, x, y), self.layers(theta, changed_x, y), of=0
        )
        if changed is None:
            return ""
        return place_of(
            changed, dict(self.module.named_modules()).get(changed, self.module)
        )

    def refuse_record_level(self) -> None:
        """Refuse a module in which a record has no gradient of its own.

        Raises:
            BenchError: the message names the layer.
        """
        self.check()
        if self.mixes_records:
            raise BenchError(
                f"model {self.name} mixes records in {self.mixes_records}, but this"
                " run takes each record's gradient: normalise within the record"
                " (e.g. GroupNorm)"
            )

    def layers(
        self, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor
    ) -> list[tuple[str, torch.Tensor]]:
        """Return the outputs of the layers, in the order in which they finish.

        The records' losses or logits come last.
        """
        outputs: list[tuple[str, torch.Tensor]] = []

        def listen(name: str, layer: nn.Module, inputs: Any, out: Any) -> None:
            if isinstance(out, torch.Tensor) and out.ndim and len(out) == len(x):
                outputs.append((name, out))

        named = [(name, layer) for name, layer in self.module.named_modules() if name]
        with self._lock, torch.no_grad():
            hooks = [
                layer.register_forward_hook(functools.partial(listen, name))
                for name, layer in named
            ]
            try:
                if hasattr(self.module, "losses"):
                    last = self.apply("losses", theta, x, y)
                else:
                    last = self.apply("forward", theta, x)
            finally:
                for hook in hooks:
                    hook.remove()
        return [*outputs, ("", last)]


def tensor_of(array: Array, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return an array as a tensor on a device, without a copy where possible."""
    if isinstance(array, torch.Tensor):
        return array.to(device)
    array = np.asarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)


@contextmanager
def _own_generator(seed: int) -> Iterator[None]:
    """Seed torch's generator, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
