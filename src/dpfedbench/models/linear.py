"""Linear layer on fixed features: multinomial logistic regression."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class LinearHead(nn.Module):
    """One linear layer over all numbers of a record, whose weights start at zero.

    Args:
        inputs: (height, width, channels) of the features.
        classes: number of classes.
        bias: whether each class has a bias.
    """

    def __init__(self, *, inputs: tuple[int, ...], classes: int, bias: bool) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.linear = nn.Linear(math.prod(inputs), classes, bias=bias)

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Return zeros: a convex loss has no symmetry to break."""
        return np.zeros(sum(value.numel() for value in self.parameters()), np.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, classes] of features [n, C, H, W]."""
        return functional.linear(
            x.movedim(1, -1).flatten(1), self.linear.weight, self.linear.bias
        )
