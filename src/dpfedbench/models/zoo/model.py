"""What every network of the zoo is: settings, and the module that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfedbench.settings.run import ModelSettings

if TYPE_CHECKING:
    from torch import nn

    from dpfedbench.models.net import Net


class ZooModel(ModelSettings):
    """Base of the networks. torch is loaded when a module is made, not when a plan is read."""

    def module(self, *, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A new module.

        Args:
            input_shape: of a record as prepared: (height, width, channels) of an image. The module's forward pass gets
                images as float [n, channels, height, width] in [0, 1].
            outputs: logits of a record.
        """
        raise NotImplementedError

    def net(self, *, input_shape: tuple[int, ...], outputs: int) -> Net:
        from dpfedbench.models.net import Net

        return Net(
            lambda: self.module(input_shape=input_shape, outputs=outputs), input_shape=input_shape, outputs=outputs
        )
