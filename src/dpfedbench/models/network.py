"""What every network here offers: named tensors over one flat vector of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch


class Network(Protocol):
    """Shapes of a model; the weights themselves are a flat vector float32 [d]."""

    @property
    def dimension(self) -> int:
        """Weights d."""
        ...

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights, in the order of the flat vector."""
        ...

    def tensors(self, theta: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """The named weights of a flat vector [d]."""
        ...

    def flatten(self, tensors: Mapping[str, Any]) -> np.ndarray:
        """The inverse of `tensors`."""
        ...
