"""The small network of Adap DP-FL (Fu et al. 2022, Section V), which is that of Opacus's MNIST example.

Two convolutions, each followed by ReLU and a 2x2 max pooling of stride 1, and two linear layers, over one flat
weight vector. It has no normalisation, so that every record has a gradient of its own.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.models.network import Network

HIDDEN = 32
MAP = (4, 4, 32)
"""The features that the linear layers read: height, width, channels."""


def _side(pixels: int) -> int:
    """Side of the map that the convolutions and poolings leave of an image of `pixels` a side."""
    first = (pixels + 2 * 3 - 8) // 2 + 1 - 1
    return (first - 4) // 2 + 1 - 1


@dataclasses.dataclass(frozen=True)
class Cnn(Network):
    """Shapes of the network.

    Attributes:
        image_shape: (height, width, channels) of an image; sides of 26 to 29 pixels.
        classes: classes told apart.
        pixel_mean, pixel_deviation: public constants; a pixel in [0, 1] enters as (pixel - mean) / deviation.
    """

    image_shape: tuple[int, int, int] = (28, 28, 1)
    classes: int = 10
    pixel_mean: float = 0.0
    pixel_deviation: float = 1.0

    def __post_init__(self) -> None:
        height, width, channels = self.image_shape
        if (_side(height), _side(width)) != MAP[:2]:
            raise BenchError(f"the CNN takes images with sides of 26 to 29 pixels, not {height}x{width}")
        if channels < 1 or self.classes < 2:
            raise BenchError(f"the CNN needs channels >= 1 and classes >= 2, not {channels} and {self.classes}")
        if not self.pixel_deviation > 0:
            raise BenchError(f"model.pixel_deviation is {self.pixel_deviation}: it must be above 0")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights, in the order of the flat vector.

        conv1 is [height, width, in, out], conv2 [out, height, width, in], linear layers [out, in], and fc1 reads the
        map in the order height, width, channel: the orders in which `fused_cnn` writes its gradients.
        """
        return {
            "conv1.weight": (8, 8, self.image_shape[2], 16),
            "conv1.bias": (16,),
            "conv2.weight": (32, 4, 4, 16),
            "conv2.bias": (32,),
            "fc1.weight": (HIDDEN, math.prod(MAP)),
            "fc1.bias": (HIDDEN,),
            "fc2.weight": (self.classes, HIDDEN),
            "fc2.bias": (self.classes,),
        }

    def initial(self, generator: np.random.Generator) -> np.ndarray:
        """Initial weights, float32 [d]: torch's own, uniform within 1/sqrt(inputs of a unit), biases too."""
        inputs = {"conv1": 64 * self.image_shape[2], "conv2": 256, "fc1": math.prod(MAP), "fc2": HIDDEN}
        parts = []
        for name, shape in self.shapes.items():
            bound = 1 / math.sqrt(inputs[name.split(".")[0]])
            parts.append(generator.uniform(-bound, bound, math.prod(shape)))
        return np.concatenate(parts).astype(np.float32)

    def logits(self, theta: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Logits [n, classes] for images [n, H, W, C] in [0, 1] and flat weights theta [d], differentiable by torch."""
        weights = self.tensors(theta)
        x = (images.permute(0, 3, 1, 2) - self.pixel_mean) / self.pixel_deviation
        x = functional.conv2d(
            x, weights["conv1.weight"].permute(3, 2, 0, 1), weights["conv1.bias"], stride=2, padding=3
        )
        x = functional.max_pool2d(functional.relu(x), 2, 1)
        x = functional.conv2d(x, weights["conv2.weight"].permute(0, 3, 1, 2), weights["conv2.bias"], stride=2)
        x = functional.max_pool2d(functional.relu(x), 2, 1)
        x = x.permute(0, 2, 3, 1).flatten(1)
        x = functional.relu(functional.linear(x, weights["fc1.weight"], weights["fc1.bias"]))
        return functional.linear(x, weights["fc2.weight"], weights["fc2.bias"])
