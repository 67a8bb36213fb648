"""Conv-4, the network of few-shot learning (Vinyals et al. 2016; Finn et al. 2017).

Four blocks of 3x3 convolution, normalisation, ReLU and 2x2 max pooling, then a linear
head. Normalisation is over the task's own batch. Where single records are protected, it
is over each record's own positions (group normalisation with one group per channel).
There are no running statistics: they would be a further release. The convolutions have
no bias, because the normalisation cancels it and under privacy it would only receive
noise.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.errors import BenchError

NORMALISATION_EPSILON = 1e-5


class _Block(nn.Module):
    """Convolution [3, 3, in, out], normalisation, ReLU and pooling."""

    def __init__(self, channels: int, filters: int, by_record: bool) -> None:
        super().__init__()
        self.by_record = by_record
        self.weight = nn.Parameter(torch.zeros(3, 3, channels, filters))
        self.scale = nn.Parameter(torch.ones(filters))
        self.shift = nn.Parameter(torch.zeros(filters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.conv2d(x, self.weight.permute(3, 2, 0, 1), padding=1)
        if self.by_record:
            x = functional.group_norm(
                x, x.shape[1], self.scale, self.shift, eps=NORMALISATION_EPSILON
            )
        else:
            x = functional.batch_norm(
                x,
                None,
                None,
                self.scale,
                self.shift,
                training=True,
                eps=NORMALISATION_EPSILON,
            )
        return functional.relu(
            functional.max_pool2d(x, 2)
        )  # same result as ReLU first, on a quarter of the numbers


class _Head(nn.Module):
    """Linear layer [in, out]."""

    def __init__(self, features: int, ways: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, ways))
        self.bias = nn.Parameter(torch.zeros(ways))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Conv4(nn.Module):
    """Conv-4 as a module.

    Args:
        image_shape: (height, width, channels) of an image; height and width from 16 up,
            first-layer sizes even.
        filters: filters of each convolution.
        ways: number of classes.
        normalisation: "batch" or "record".

    Raises:
        BenchError: the sides of an image do not fit.
    """

    channels_last = True

    def __init__(
        self,
        *,
        image_shape: tuple[int, ...],
        filters: int,
        ways: int,
        normalisation: str = "batch",
    ) -> None:
        super().__init__()
        height, width, channels = image_shape
        if min(height, width) < 16 or height % 2 or width % 2:
            raise BenchError(
                "Conv-4 takes images of even sides from 16 pixels up, not"
                f" {height}x{width}"
            )
        self.image_shape = tuple(image_shape)
        self.filters = filters
        self.ways = ways
        self.normalisation = normalisation
        for block in range(1, 5):
            self.add_module(
                f"block{block}", _Block(channels, filters, normalisation == "record")
            )
            channels = filters
        self.head = _Head((height // 16) * (width // 16) * filters, ways)

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Return the initial weights, float32 [d].

        Convolutions are Glorot-uniform, scales are one, and all other weights are zero.

        The head starts at zero because a task's labels are arbitrary. A client's first
        step then sets the head from its own features; a random head would first have to
        be unlearnt. A zero head also makes the first meta-gradients smaller and less
        scattered, compared with the clipping threshold and the noise.
        """
        parts = []
        for name, value in self.named_parameters():
            if name.startswith("block") and name.endswith("weight"):
                bound = math.sqrt(6 / (9 * (value.shape[-2] + value.shape[-1])))
                parts.append(rng.uniform(-bound, bound, value.numel()))
            else:
                parts.append(
                    np.full(value.numel(), 1.0 if name.endswith("scale") else 0.0)
                )
        return np.concatenate(parts).astype(np.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, ways] of images [n, C, H, W]."""
        for name, block in self.named_children():
            if name != "head":
                x = block(x)
        return self.head(x.permute(0, 2, 3, 1).flatten(1))
