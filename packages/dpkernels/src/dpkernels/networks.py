"""Networks that the passes compute, described by their layers' shapes.

A description has the layout of the parameter vector: its tensors, one after another, in
the order of `tensors`. Images are [height, width, channels].
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

NORMALISATION_EPSILON = 1e-5
"""Number that Conv-4 adds to a variance before it takes the root."""

HIDDEN = 32
"""Units of the first linear layer of the CNN."""
MAP = (4, 4, 32)
"""Shape of the features that the CNN's linear layers read: height, width, channels."""


class NetworkShape(ABC):
    """Shapes of a network's records, labels and parameters.

    Attributes:
        input_shape: shape of a record: (height, width, channels), or (words,).
        outputs: number of classes, or of words.
    """

    input_shape: tuple[int, ...]
    outputs: int

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of a record's labels; () is one label."""
        return ()

    @property
    @abstractmethod
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors, in the order of the parameter vector."""

    @property
    def dimension(self) -> int:
        """Length of the parameter vector."""
        return sum(math.prod(shape) for shape in self.tensors.values())


@dataclass(frozen=True)
class Conv4Shape(NetworkShape):
    """Conv-4 (Vinyals et al. 2016).

    Four blocks of 3x3 convolution with padding 1 and no bias, normalisation with scale
    and shift, ReLU and 2x2 max pooling, then a linear layer over height, width and
    channels of the last map. The loss is the cross-entropy of its outputs.

    Attributes:
        input_shape: sides of an image are even, from 16 up.
        filters: filters of each convolution.
        outputs: number of classes.
        normalisation: "batch": each channel over the images of a batch and their
            positions. "record": each channel over the positions of its own image.
    """

    input_shape: tuple[int, ...]
    filters: int
    outputs: int
    normalisation: str

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        height, width, channels = self.input_shape
        shapes: dict[str, tuple[int, ...]] = {}
        for block in range(1, 5):
            shapes[f"block{block}.weight"] = (3, 3, channels, self.filters)
            shapes[f"block{block}.scale"] = (self.filters,)
            shapes[f"block{block}.shift"] = (self.filters,)
            channels = self.filters
        features = (height // 16) * (width // 16) * self.filters
        shapes["head.weight"] = (features, self.outputs)
        shapes["head.bias"] = (self.outputs,)
        return shapes


@dataclass(frozen=True)
class CnnShape(NetworkShape):
    """CNN of Adap DP-FL (Fu et al. 2022), which Opacus' MNIST example has, too.

    An 8x8 convolution with stride 2 and padding 3, ReLU and a 2x2 max pooling of stride
    1, a 4x4 convolution with stride 2, ReLU and the same pooling, and two linear layers
    with a ReLU between them. Linear weights are [out, in]; the first ones read a map in
    the order height, width, channel. The loss is the cross-entropy of the outputs.

    Attributes:
        input_shape: sides of an image are 26 to 29.
        outputs: number of classes.
        pixel_mean, pixel_deviation: a pixel in [0, 1] enters as (pixel - mean) /
            deviation.
    """

    input_shape: tuple[int, ...]
    outputs: int
    pixel_mean: float = 0.0
    pixel_deviation: float = 1.0

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {
            "conv1.weight": (8, 8, self.input_shape[2], 16),  # height, width, in, out
            "conv1.bias": (16,),
            "conv2.weight": (32, 4, 4, 16),  # out, height, width, in
            "conv2.bias": (32,),
            "fc1.weight": (HIDDEN, math.prod(MAP)),
            "fc1.bias": (HIDDEN,),
            "fc2.weight": (self.outputs, HIDDEN),
            "fc2.bias": (self.outputs,),
        }


@dataclass(frozen=True)
class LinearShape(NetworkShape):
    """One linear layer over all numbers of a record: multinomial logistic regression.

    Attributes:
        input_shape: (height, width, channels) of the features.
        outputs: number of classes.
        bias: whether each class has a bias.
    """

    input_shape: tuple[int, ...]
    outputs: int
    bias: bool = True

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            "linear.weight": (self.outputs, math.prod(self.input_shape))
        }
        if self.bias:
            shapes["linear.bias"] = (self.outputs,)
        return shapes


@dataclass(frozen=True)
class LstmShape(NetworkShape):
    """LSTM language model (Li et al. 2020, Appendix C).

    The model predicts each word of a record from the words before it. Gates are in the
    order of torch: input, forget, cell, output. The embedding's last row stands for the
    start of a record. A record's loss is the sum of its words' cross-entropies divided
    by their number; a target of 0 (an unknown word) has no loss, and no right answer.

    Attributes:
        input_shape: (L,), the number of words of a record.
        outputs: number of words V of the vocabulary; word 0 stands for unknown words.
        width: width of the embedding and of each layer.
        layers: number of LSTM layers.
        tied: whether the logits are products with the embedding's first V rows.
    """

    input_shape: tuple[int, ...]
    outputs: int
    width: int
    layers: int
    tied: bool

    @property
    def label_shape(self) -> tuple[int, ...]:
        return self.input_shape

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        width = self.width
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.outputs + 1, width)}
        for layer in range(self.layers):
            shapes[f"input{layer}"] = (4 * width, width)
            shapes[f"hidden{layer}"] = (4 * width, width)
            shapes[f"bias{layer}"] = (4 * width,)
        if not self.tied:
            shapes["softmax"] = (self.outputs, width)
        return shapes
