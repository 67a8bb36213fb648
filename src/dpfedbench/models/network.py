"""What every network here is: named tensors over one flat vector of weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dpfedbench.errors import BenchError


class Network:
    """Shapes of a model; the weights themselves are a flat vector float32 [d]."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights, in the order of the flat vector."""
        raise NotImplementedError

    def initial(self, generator: np.random.Generator) -> np.ndarray:
        """Initial weights, float32 [d]."""
        raise NotImplementedError

    @functools.cached_property
    def dimension(self) -> int:
        """Number of weights d."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def tensors(self, theta: torch.Tensor) -> dict[str, torch.Tensor]:
        """The flat vector as named tensors (views)."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = torch.split(theta, sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def flatten(self, tensors: Mapping[str, Any]) -> np.ndarray:
        """Named tensors as a flat float32 vector.

        Raises:
            BenchError: names or shapes are not this network's.
        """
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != self.shapes:
            raise BenchError("the model file's tensors do not fit this network: delete the run's folder and run again")
        return np.concatenate([np.asarray(tensors[name], dtype=np.float32).ravel() for name in self.shapes])
