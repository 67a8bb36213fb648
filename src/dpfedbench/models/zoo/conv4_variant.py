"""Conv-4 with details of MAML++'s code that the project's Conv-4 leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from dpfedbench.config.part import setting
from dpfedbench.models.zoo.model import ZooModel

if TYPE_CHECKING:
    from torch import nn


class Conv4Variant(ZooModel):
    """Conv-4 with choices that MAML++'s code makes differently.

    The choices are activation, biases, first head, polarity and adapted tensors. Each
    is a detail in which MAML++'s code (Antoniou et al. 2019) differs from `conv4`. With
    all defaults the network equals `conv4`, computed by torch.
    """

    kind: Literal["conv4-variant"] = "conv4-variant"
    filters: int = setting(
        16, ge=1, le=1024, doc="channels of each of the four blocks", paper="64"
    )
    normalisation: Literal["batch", "record"] = setting(
        "batch", doc="as for conv4: over the task's images, or within each image"
    )
    activation: Literal["relu", "leaky-relu"] = setting(
        "relu",
        doc="leaky-relu: with a slope of 0.01 below 0",
        paper="released code: leaky-relu",
    )
    biases: bool = setting(
        False,
        doc="whether convolutions have biases, which start at 0",
        paper="released code: true",
    )
    head: Literal["zero", "glorot"] = setting(
        "zero", doc="initial weights of the head", paper="released code: glorot"
    )
    inverted: bool = setting(
        False,
        doc="whether the network sees 1 minus the image: dark strokes on white",
        paper="released code: true",
    )
    adapt_normalisation: bool = setting(
        True,
        doc="whether scale and shift move in the inner steps",
        paper="released code: false",
    )

    @property
    def record_level(self) -> bool:
        return self.normalisation == "record"

    def adapted(self, tensors: Sequence[str]) -> Sequence[str] | None:
        if self.adapt_normalisation:
            return None
        return [name for name in tensors if not name.endswith((".scale", ".shift"))]

    def module(self, *, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        from dpfedbench.models.conv4_variant import Conv4VariantNet

        height, width, channels = input_shape
        return Conv4VariantNet(
            image_shape=(height, width, channels),
            filters=self.filters,
            ways=outputs,
            normalisation=self.normalisation,
            slope=0.01 if self.activation == "leaky-relu" else 0.0,
            biases=self.biases,
            glorot_head=self.head == "glorot",
            inverted=self.inverted,
        )
