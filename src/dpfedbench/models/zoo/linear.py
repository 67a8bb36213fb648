"""Linear head on fixed features (Tramer and Boneh 2021).

It is the simple baseline of private training of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.config.plugin_sources import digest_classes
from dpfedbench.config.rules import Rule
from dpfedbench.models.features.features import Features
from dpfedbench.models.features.scattering import Scattering
from dpfedbench.models.zoo.model import ZooModel

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from dpfedbench.run import Run


class LinearModel(ZooModel):
    """One linear layer over fixed features of each image.

    The features are computed once, because they read no other image.
    """

    kind: Literal["linear"] = "linear"
    features: Features = setting(
        Scattering(), doc="features of an image that the layer reads"
    )
    bias: bool = setting(
        True,
        doc=(
            "a bias for each class; with features of length 1 it makes gradients"
            " sqrt(2) longer"
        ),
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda model, run: run.client_data != "records" or run.pretrains,
            "model.kind is linear, which computes the features of records once,"
            " but {run.method} has few-shot tasks as clients or replaces the"
            " last layer in the test: take conv4",
        ),
    )

    def prepared(
        self, records: np.ndarray, public: np.ndarray | None = None
    ) -> np.ndarray:
        return self.features(records, public)

    def made_once(self, run: Run) -> dict[str, Any]:
        code = digest_classes([type(self.features)])
        identity = {
            "features": self.features.identity(),
            "version": self.features.version,
        }
        if code:
            identity["code"] = code
        return identity | (
            {"public": run.validation.tasks} if self.features.evened else {}
        )

    def net(self, *, input_shape: tuple[int, ...], outputs: int) -> Any:
        return super().net(
            input_shape=self.features.shape(input_shape), outputs=outputs
        )

    def module(self, *, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        from dpfedbench.models.linear import LinearHead

        return LinearHead(inputs=input_shape, classes=outputs, bias=self.bias)
