"""Small perceptron on averaged pixels, for experiments with few clients.

The noise of a private sum grows with the square root of the number of weights. With few
hundred clients a network of a few thousand weights is what a small ε allows.
"""

import torch
from torch import nn
from torch.nn import functional


class Perceptron(nn.Module):
    """Averages of squares of pixels, one hidden layer of ReLU, and a linear head.

    Args:
        input_shape: (height, width, channels) of an image.
        outputs: number of classes.
        square: side of the squares whose pixels are averaged.
        hidden: units of the hidden layer.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        outputs: int,
        square: int = 3,
        hidden: int = 32,
    ) -> None:
        super().__init__()
        height, width, channels = input_shape
        self.square = square
        inputs = channels * (height // square) * (width // square)
        self.body = nn.Linear(inputs, hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, outputs] of images [n, channels, height, width]."""
        averages = functional.avg_pool2d(x, self.square).flatten(1)
        return self.head(functional.relu(self.body(averages)))
