"""Conv-4, the network of few-shot learning (Vinyals et al. 2016; Finn et al. 2017), over one flat weight vector.

Four blocks of 3x3 convolution, normalisation, ReLU and 2x2 max pooling, then a linear head. Normalisation is over the
task's own batch, or, where single records are protected, over each record's own positions (group normalisation with a
group for each channel). There are no running statistics anywhere: they would be a release of their own. The
convolutions have no bias, since the normalisation takes it out again and under privacy it would only receive noise.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.models.network import Network

NORMALISATION_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv4(Network):
    """Shapes of a Conv-4.

    Attributes:
        image_shape: (height, width, channels) of an image; height and width from 16 up, first-layer sizes even.
        filters: filters of each convolution.
        ways: classes told apart.
        normalisation: "batch" or "record".
        step_rates: steps of adaptation whose learning rates are learnt with the weights, one for each step and tensor
            (MAML++, Antoniou et al. 2019); 0: none are.
        first_rate: what each of them starts at.
    """

    image_shape: tuple[int, int, int]
    filters: int
    ways: int
    normalisation: str = "batch"
    step_rates: int = 0
    first_rate: float = 0.0

    def __post_init__(self) -> None:
        height, width, _ = self.image_shape
        if min(height, width) < 16 or height % 2 or width % 2:
            raise BenchError(f"Conv-4 takes images of even sides from 16 pixels up, not {height}x{width}")
        if self.filters < 1 or self.ways < 2:
            raise BenchError(f"Conv-4 needs filters >= 1 and ways >= 2, not {self.filters} and {self.ways}")
        if self.normalisation not in ("batch", "record"):
            raise BenchError(f"model.normalisation is {self.normalisation!r}: choose batch or record")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights, in the order of the flat vector; convolutions are [3, 3, in, out]."""
        height, width, channels = self.image_shape
        shapes: dict[str, tuple[int, ...]] = {}
        for block in range(1, 5):
            shapes[f"block{block}.weight"] = (3, 3, channels, self.filters)
            shapes[f"block{block}.scale"] = (self.filters,)
            shapes[f"block{block}.shift"] = (self.filters,)
            channels = self.filters
        shapes["head.weight"] = ((height // 16) * (width // 16) * self.filters, self.ways)
        shapes["head.bias"] = (self.ways,)
        if self.step_rates:
            shapes["rates"] = (self.step_rates, len(shapes))
        return shapes

    @property
    def weights(self) -> int:
        """Number of weights, which come first in the flat vector; learnt rates follow."""
        return self.dimension - math.prod(self.shapes.get("rates", (0,)))

    @property
    def sizes(self) -> list[int]:
        """Number of weights of each tensor."""
        return [math.prod(shape) for name, shape in self.shapes.items() if name != "rates"]

    def rates(self, theta: np.ndarray, rate: float) -> np.ndarray:
        """Learning rate of each weight in each step [step_rates, weights]; [1, 1] where one is for all."""
        if not self.step_rates:
            return np.full((1, 1), rate, theta.dtype)
        return np.repeat(theta[self.weights :].reshape(self.step_rates, -1), self.sizes, axis=1)

    def initial(self, generator: np.random.Generator) -> np.ndarray:
        """Initial weights, float32 [d]: Glorot-uniform convolutions, unit scales, the rest zero.

        The head starts at zero because a task's labels are arbitrary: a client's first step then sets the head from
        its own features, where a random head would first have to be unlearnt. It also makes the first meta-gradients
        smaller and less scattered, which is what clipping and noise are measured against.
        """
        parts = []
        for name, shape in self.shapes.items():
            if name.startswith("block") and name.endswith("weight"):
                receptive = math.prod(shape[:-2])
                bound = math.sqrt(6 / (receptive * (shape[-2] + shape[-1])))
                parts.append(generator.uniform(-bound, bound, math.prod(shape)))
            elif name == "rates":
                parts.append(np.full(math.prod(shape), self.first_rate))
            else:
                parts.append(np.full(math.prod(shape), 1.0 if name.endswith("scale") else 0.0))
        return np.concatenate(parts).astype(np.float32)

    def with_fresh_head(self, theta: np.ndarray) -> np.ndarray:
        """Weights [d] whose body is that of `theta`, of the same network with any number of ways, bit for bit.

        The head is zero, as it is before any training (`initial`), so that nothing of the old one is left.
        """
        head = sum(math.prod(shape) for name, shape in self.shapes.items() if name.startswith("head"))
        body = theta[: self.dimension - head]
        return np.concatenate([body, np.zeros(head, theta.dtype)])

    def unflatten(self, theta: np.ndarray) -> list[tuple[np.ndarray, ...]]:
        """Views into a flat vector: four times (weight [9*in, out], scale, shift), then (head weight, bias).

        Learnt rates, if any, are left out.
        """
        views, start = [], 0
        for shape in list(self.shapes.values())[:14]:
            size = math.prod(shape)
            views.append(
                theta[start : start + size].reshape(-1, shape[-1]) if len(shape) > 1 else theta[start : start + size]
            )
            start += size
        return [tuple(views[3 * block : 3 * block + 3]) for block in range(4)] + [tuple(views[12:])]

    def forward(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Logits [B, ways] for images x [B, H, W, C] and flat weights theta [d], differentiable by torch."""
        weights = self.tensors(theta)
        x = x.permute(0, 3, 1, 2)
        for block in range(1, 5):
            x = functional.conv2d(x, weights[f"block{block}.weight"].permute(3, 2, 0, 1), padding=1)
            scale, shift = weights[f"block{block}.scale"], weights[f"block{block}.shift"]
            if self.normalisation == "record":
                x = functional.group_norm(x, self.filters, scale, shift, eps=NORMALISATION_EPSILON)
            else:
                x = functional.batch_norm(x, None, None, scale, shift, training=True, eps=NORMALISATION_EPSILON)
            x = functional.max_pool2d(functional.relu(x), 2)
        flat = x.permute(0, 2, 3, 1).flatten(1)
        return flat @ weights["head.weight"] + weights["head.bias"]
