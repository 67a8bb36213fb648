"""Conv-4, the network of few-shot learning (Vinyals et al. 2016; Finn et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.config.part import setting
from dpfedbench.models.zoo.model import ZooModel

if TYPE_CHECKING:
    from torch import nn


class Conv4Model(ZooModel):
    """Four convolutional blocks and a linear head.

    A block is a 3x3 convolution, normalisation, ReLU and 2x2 max pooling.
    """

    kind: Literal["conv4"] = "conv4"
    filters: int = setting(
        16,
        ge=1,
        le=1024,
        doc="channels of each of the four blocks",
        paper="64 (Omniglot), 48",
    )
    normalisation: Literal["batch", "record"] = setting(
        "batch",
        doc=(
            "batch: over the task's images; record: within each image, so that no image"
            " depends on another"
        ),
    )

    @property
    def record_level(self) -> bool:
        return self.normalisation == "record"

    def module(self, *, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        from dpfedbench.models.conv4 import Conv4

        return Conv4(
            image_shape=input_shape,
            filters=self.filters,
            ways=outputs,
            normalisation=self.normalisation,
        )
