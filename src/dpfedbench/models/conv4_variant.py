"""Conv-4 with details of MAML++'s code; see `models.zoo.conv4_variant`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.models.conv4 import Conv4


class Conv4VariantNet(Conv4):
    """Conv-4 with choices of activation, biases, head and polarity.

    Args:
        slope: slope of the activation below 0; 0 is ReLU.
        biases: whether convolutions have biases.
        glorot_head: whether the head starts Glorot-uniform instead of at zero.
        inverted: whether the network sees 1 minus the image.
        sizes: arguments of `Conv4`.
    """

    def __init__(
        self,
        *,
        slope: float,
        biases: bool,
        glorot_head: bool,
        inverted: bool,
        **sizes: Any,
    ) -> None:
        super().__init__(**sizes)
        self.slope = slope
        self.inverted = inverted
        self.glorot_head = glorot_head
        for block in self._blocks():
            filters = block.scale.numel()
            block.bias = nn.Parameter(torch.zeros(filters)) if biases else None
        self.shapes = [tuple(value.shape) for value in self.parameters()]

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Return the weights of `Conv4`, with zero biases and this network's head.

        The head is drawn last, so that the convolutions are those of `Conv4` at the
        same seed.
        """
        parts = {}
        for name, value in self.named_parameters():
            if name.startswith("block") and name.endswith("weight"):
                bound = math.sqrt(6 / (9 * (value.shape[-2] + value.shape[-1])))
                parts[name] = rng.uniform(-bound, bound, value.numel())
            else:
                start = 1.0 if name.endswith("scale") else 0.0
                parts[name] = np.full(value.numel(), start)
        if self.glorot_head:
            features, ways = self.head.weight.shape
            bound = math.sqrt(6 / (features + ways))
            parts["head.weight"] = rng.uniform(-bound, bound, features * ways)
        return np.concatenate(list(parts.values())).astype(np.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, ways] of images [n, C, H, W]."""
        if self.inverted:
            x = 1 - x
        for block in self._blocks():
            x = functional.conv2d(
                x, block.weight.permute(3, 2, 0, 1), block.bias, padding=1
            )
            x = self._normalised(x, block)
            # The activation is increasing, so it commutes with max pooling.
            x = functional.leaky_relu(functional.max_pool2d(x, 2), self.slope)
        logits: torch.Tensor = self.head(x.permute(0, 2, 3, 1).flatten(1))
        return logits

    def _blocks(self) -> list[Any]:
        return [block for name, block in self.named_children() if name != "head"]

    def _normalised(self, x: torch.Tensor, block: Any) -> torch.Tensor:
        scale = block.scale
        shift = block.shift
        if block.by_record:
            return functional.group_norm(x, x.shape[1], scale, shift, eps=1e-5)
        return functional.batch_norm(
            x, None, None, scale, shift, training=True, eps=1e-5
        )
