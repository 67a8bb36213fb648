"""Small convolutional network of Adap DP-FL (Fu et al. 2022, Section V).

Opacus' MNIST example uses the same network. It has two convolutions, each followed by
ReLU and a 2x2 max pooling of stride 1, and two linear layers. It has no normalisation,
so a record's gradient does not depend on other records.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.errors import BenchError

HIDDEN = 32
MAP = (4, 4, 32)
"""Shape of the features that the linear layers read: height, width, channels."""


def _side(pixels: int) -> int:
    """Return the side of the map after the convolutions and poolings.

    Args:
        pixels: side of the image.
    """
    first = (pixels + 2 * 3 - 8) // 2 + 1 - 1
    return (first - 4) // 2 + 1 - 1


class _Layer(nn.Module):
    """Weights and bias of one layer."""

    def __init__(self, *shape: int, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(*shape))
        self.bias = nn.Parameter(torch.zeros(units))


class Cnn(nn.Module):
    """Small convolutional network.

    The weights of conv1 are [height, width, in, out], those of conv2 [out, height,
    width, in], those of the linear layers [out, in]. fc1 reads the map in the order
    height, width, channel. `dpkernels.CnnShape` has the same orders.

    Args:
        image_shape: (height, width, channels) of an image; sides of 26 to 29 pixels.
        classes: number of classes.
        pixel_mean, pixel_deviation: public constants. A pixel in [0, 1] enters as
            (pixel - mean) / deviation.

    Raises:
        BenchError: an argument is out of range.
    """

    channels_last = True

    def __init__(
        self,
        *,
        image_shape: tuple[int, ...],
        classes: int,
        pixel_mean: float = 0.0,
        pixel_deviation: float = 1.0,
    ) -> None:
        super().__init__()
        height, width, channels = image_shape
        if (_side(height), _side(width)) != MAP[:2]:
            raise BenchError(
                "the CNN takes images with sides of 26 to 29 pixels, not"
                f" {height}x{width}"
            )
        self.image_shape = tuple(image_shape)
        self.classes = classes
        self.pixel_mean = pixel_mean
        self.pixel_deviation = pixel_deviation
        self.conv1 = _Layer(8, 8, channels, 16, units=16)
        self.conv2 = _Layer(32, 4, 4, 16, units=32)
        self.fc1 = _Layer(HIDDEN, math.prod(MAP), units=HIDDEN)
        self.fc2 = _Layer(classes, HIDDEN, units=classes)

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Return the initial weights, float32 [d].

        As torch's own, weights and biases are uniform within 1/sqrt(inputs of a unit).
        """
        inputs = {
            "conv1": 64 * self.image_shape[2],
            "conv2": 256,
            "fc1": math.prod(MAP),
            "fc2": HIDDEN,
        }
        parts = []
        for name, value in self.named_parameters():
            bound = 1 / math.sqrt(inputs[name.split(".")[0]])
            parts.append(rng.uniform(-bound, bound, value.numel()))
        return np.concatenate(parts).astype(np.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, classes] of images [n, C, H, W] in [0, 1]."""
        x = (x - self.pixel_mean) / self.pixel_deviation
        x = functional.conv2d(
            x,
            self.conv1.weight.permute(3, 2, 0, 1),
            self.conv1.bias,
            stride=2,
            padding=3,
        )
        x = functional.max_pool2d(functional.relu(x), 2, 1)
        x = functional.conv2d(
            x, self.conv2.weight.permute(0, 3, 1, 2), self.conv2.bias, stride=2
        )
        x = functional.max_pool2d(functional.relu(x), 2, 1)
        x = x.permute(0, 2, 3, 1).flatten(1)
        x = functional.relu(functional.linear(x, self.fc1.weight, self.fc1.bias))
        return functional.linear(x, self.fc2.weight, self.fc2.bias)
