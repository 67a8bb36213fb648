"""Networks of cells (`models.darts`): gradients of single records by one pass of torch.

It uses one CPU thread. The records' losses are added up and differentiated once. In the
backward pass each layer writes its own weights' gradients to the rows, record by
record. For a depthwise convolution, the gradients are one grouped convolution of its
maps with the arriving gradient, with a group for each channel of each record. For a 1x1
convolution, they are one matrix product per record. A depthwise convolution computes
its input's gradient as a forward convolution, which is faster than torch's own. The
rows of the architecture weights come from one backward pass as well: each record has
its own copy of these weights.

A record's numbers depend on that record only, and keep their bits whatever the other
records are.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.models.cell_layers import NORMALISATION_EPSILON, Norm
from dpfedbench.models.darts import CellNet, SearchNet
from dpfedbench.models.gradients import Gradients
from dpfedbench.models.net import Array, Net, tensor_of

_TOGETHER = 128
_NUMBERS = 2**24
"""Number of records of one pass.

It outweighs the overhead of calls. It is lower if the gradients would have too many
values.
"""


Write = Callable[[torch.Tensor], None]
"""Function that writes each record's gradient in all of a layer's weights, [n, ...]."""


class _Depthwise(torch.autograd.Function):
    """Depthwise convolution: one filter per channel."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: nn.Conv2d, write: Write
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        ctx.write = write
        return functional.conv2d(
            x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups
        )

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, weight) = ctx.saved_tensors
        layer = ctx.layer
        (g,) = arriving
        channels = x.shape[0] * x.shape[1]
        side = weight.shape[-1]
        if ctx.needs_input_grad[1]:
            taps = functional.conv2d(
                x.reshape(1, channels, *x.shape[2:]),
                g.reshape(channels, 1, *g.shape[2:]),
                None,
                layer.dilation,
                layer.padding,
                layer.stride,
                channels,
            )
            ctx.write(taps[0, :, :side, :side].reshape(len(x), -1))
        back = None
        if ctx.needs_input_grad[0]:
            down, right = layer.stride
            if down > 1:
                spread = torch.zeros_like(x)
                spread[:, :, ::down, ::right] = g
                g = spread
            back = functional.conv2d(
                g,
                weight.flip(2, 3),
                None,
                1,
                layer.padding,
                layer.dilation,
                layer.groups,
            )
        return back, None, None, None


class _Pointwise(torch.autograd.Function):
    """1x1 convolution: one matrix per group of channels, the same at all positions."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, groups: int, write: Write
    ) -> torch.Tensor:
        parts = x.reshape(len(x), groups, -1, x.shape[2] * x.shape[3])
        matrices = weight.reshape(groups, -1, weight.shape[1])
        ctx.save_for_backward(parts, matrices)
        ctx.write = write
        ctx.shape = x.shape
        return torch.matmul(matrices, parts).reshape(len(x), -1, *x.shape[2:])

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (parts, matrices) = ctx.saved_tensors
        (g,) = arriving
        g = g.reshape(len(g), len(matrices), -1, parts.shape[-1])
        if ctx.needs_input_grad[1]:
            ctx.write(torch.matmul(g, parts.mT))
        back = (
            torch.matmul(matrices.mT, g).reshape(ctx.shape)
            if ctx.needs_input_grad[0]
            else None
        )
        return back, None, None, None


class _First(torch.autograd.Function):
    """Convolution that reads the image and therefore has no input gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, write: Write
    ) -> torch.Tensor:
        side = weight.shape[-1]
        windows = functional.unfold(x, side, padding=side // 2)
        ctx.save_for_backward(windows)
        ctx.write = write
        return torch.matmul(weight.flatten(1), windows).unflatten(2, x.shape[2:])

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[None, ...]:
        if ctx.needs_input_grad[1]:
            ctx.write(torch.matmul(arriving[0].flatten(2), ctx.saved_tensors[0].mT))
        return None, None, None


class _Scaled(torch.autograd.Function):
    """Scale and shift of each channel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
        write: Write,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        ctx.write = write
        return x * scale[:, None, None] + shift[:, None, None]

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, scale) = ctx.saved_tensors
        (g,) = arriving
        if ctx.needs_input_grad[1]:
            ctx.write(torch.cat([(g * x).sum((2, 3)), g.sum((2, 3))], 1))
        back = g * scale[:, None, None] if ctx.needs_input_grad[0] else None
        return back, None, None, None


class _Last(torch.autograd.Function):
    """Final linear layer."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        write: Write,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.write = write
        return _matrix_by_rows(x, weight.T) + bias

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, weight) = ctx.saved_tensors
        (g,) = arriving
        if ctx.needs_input_grad[1]:
            ctx.write(torch.cat([(g[:, :, None] * x[:, None]).flatten(1), g], 1))
        return _matrix_by_rows(g, weight), None, None, None


def _matrix_by_rows(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Multiply each row by a matrix, in a separate product.

    The order of additions in a joint product may depend on the number of rows.
    """
    return torch.matmul(rows[:, None], matrix)[:, 0]


class CellGradients(Gradients):
    """Gradients of a `CellNet`. The arguments are those of `Gradients`."""

    name = "cells"

    def __init__(self, net: Net, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(net, dtype=dtype)
        self._rows = torch.empty(0)

    def _together(self) -> int:
        return max(1, min(_TOGETHER, _NUMBERS // self.net.weights))

    @functools.cached_property
    def _module(self) -> CellNet:
        """The module of this object, whose layers write to the rows of a pass."""
        module = self.net.build()
        assert isinstance(module, CellNet)
        module = module.to(self.dtype)
        start = 0
        for layer in module.modules():
            count = sum(value.numel() for value in layer.parameters(recurse=False))
            write = functools.partial(self._write, slice(start, start + count))
            start += count
            forward = _forward(layer, module, write)
            if forward is not None:
                layer.forward = types.MethodType(forward, layer)  # type: ignore[method-assign]
        return module

    def _write(self, coordinates: slice, gradient: torch.Tensor) -> None:
        self._rows[:, coordinates] = gradient.flatten(1)

    def _record_gradients(
        self, theta: Array, x: Array, y: Array, out: Array, block: str
    ) -> np.ndarray:
        module = self._module
        of_weights = block != "architecture"
        of_architecture = block != "weights"
        weights = self._theta(theta)
        rows = torch.as_tensor(out)
        all_losses = [np.empty(0)]
        with torch.no_grad():
            nn.utils.vector_to_parameters(weights, module.parameters())
        for name, value in module.named_parameters():
            value.requires_grad_(of_weights and not name.startswith("architecture."))
        for start in range(0, len(x), self._together()):
            records = slice(start, start + self._together())
            inputs = self.net.inputs(x[records], self._like)
            labels = tensor_of(y[records])
            self._rows = rows[records]
            with torch.enable_grad():
                mix = None
                copies = []
                if isinstance(module, SearchNet):
                    for value in module.architecture.values():
                        edge_logits = value.detach().expand(len(inputs), -1, -1)
                        copies.append(
                            edge_logits.clone().requires_grad_(of_architecture)
                        )
                    shares = [edge_logits.softmax(-1) for edge_logits in copies]
                    mix = dict(zip(module.architecture, shares, strict=True))
                logits = module.logits(inputs, mix)
                losses = functional.cross_entropy(logits, labels, reduction="none")
                losses.sum().backward()
            if isinstance(module, SearchNet) and of_architecture:
                slopes = [edge_logits.grad.flatten(1) for edge_logits in copies]
                self._rows[:, -module.space.size :] = torch.cat(slopes, 1)
            all_losses.append(losses.detach().double().numpy())
        self._rows = torch.empty(0)
        return np.concatenate(all_losses)


def _forward(
    layer: nn.Module, module: CellNet, write: Write
) -> Callable[..., torch.Tensor] | None:
    """Return the replacement of a layer's forward pass.

    None: the layer has no weights.
    """
    if isinstance(layer, nn.Linear):
        return lambda self, x: _Last.apply(x, self.weight, self.bias, write)
    if isinstance(layer, Norm) and layer.scale is not None:
        return lambda self, x: _Scaled.apply(
            functional.group_norm(x, self.groups, eps=NORMALISATION_EPSILON),
            self.scale,
            self.shift,
            write,
        )
    if not isinstance(layer, nn.Conv2d):
        return None
    if layer is module.stem:
        return lambda self, x: _First.apply(x, self.weight, write)
    if layer.weight.shape[-1] > 1:
        return lambda self, x: _Depthwise.apply(x, self.weight, self, write)
    down, right = layer.stride
    return lambda self, x: _Pointwise.apply(
        x[:, :, ::down, ::right], self.weight, self.groups, write
    )
