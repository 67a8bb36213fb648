"""LSTM of next-word prediction (McMahan et al. 2018; Li et al. 2020, Appendix C)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.models.zoo.model import ZooModel

if TYPE_CHECKING:
    from torch import nn


class LstmModel(ZooModel):
    """An embedding, LSTM layers and a softmax over the known words."""

    reads: ClassVar[str] = "text"
    kind: Literal["lstm"] = "lstm"
    width: int = setting(
        32, ge=1, le=4096, doc="width of the embedding and of each layer", paper="200"
    )
    layers: int = setting(2, ge=1, le=32, doc="number of LSTM layers", paper="2")
    tied: bool = setting(
        True, doc="whether logits are products with the embedding", paper="true"
    )

    def module(self, *, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        from dpfedbench.models.lstm import Lstm

        return Lstm(
            words=outputs,
            record=input_shape[0],
            width=self.width,
            layers=self.layers,
            tied=self.tied,
        )
