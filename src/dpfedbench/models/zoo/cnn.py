"""Small convolutional network of Adap DP-FL (Fu et al. 2022, Section V).

Opacus' MNIST example uses the same network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.config.part import setting
from dpfedbench.models.zoo.model import ZooModel

if TYPE_CHECKING:
    from torch import nn

    from dpfedbench.run import Run


class CnnModel(ZooModel):
    """Two convolutions and two linear layers.

    Each convolution is followed by ReLU and a 2x2 max pooling of stride 1.
    """

    kind: Literal["cnn"] = "cnn"
    pixel_mean: float = setting(
        0.0,
        ge=-1e6,
        le=1e6,
        doc="subtracted from a pixel in [0, 1] ...",
        paper="0.1307 (MNIST), 0.2860",
    )
    pixel_deviation: float = setting(
        1.0,
        ge=1e-6,
        le=1e6,
        doc=(
            "... which is then divided by this value; both are public constants of the"
            " data set"
        ),
        paper="0.3081, 0.3530",
    )

    def notices(self, run: Run) -> tuple[str, ...]:
        if (self.pixel_mean, self.pixel_deviation) == (0.0, 1.0):
            return ()
        return (
            "pixels are normalised by published constants of the data set, which no"
            " account covers",
        )

    def module(self, *, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        from dpfedbench.models.cnn import Cnn

        return Cnn(
            image_shape=input_shape,
            classes=outputs,
            pixel_mean=self.pixel_mean,
            pixel_deviation=self.pixel_deviation,
        )
