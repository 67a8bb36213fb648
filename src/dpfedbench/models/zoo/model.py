"""Base of networks of the zoo: settings, and the module that they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from dpfedbench.config.model_settings import ModelSettings
from dpfedbench.config.rules import Rule

if TYPE_CHECKING:
    from torch import nn

    from dpfedbench.models.net import Net


class ZooModel(ModelSettings):
    """Base of the networks' settings.

    torch is loaded when a module is made, not when a plan is read. `reads` is "images"
    or "text".
    """

    reads: ClassVar[str] = "images"

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda model, run: model.reads == "images" and run.task.text is not None,
            "task.text does not fit model.kind {part.kind}, which reads images:"
            " leave it null, or take another model",
        ),
        Rule(
            lambda model, run: model.reads == "text" and run.task.text is None,
            "task.text does not fit model.kind {part.kind}, which reads text: give"
            " its words, or take another model",
        ),
    )

    def module(self, *, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return a new module.

        Args:
            input_shape: shape of a prepared record: (height, width, channels) of an
                image, (words,) of a text. The module's forward pass gets images as
                float [n, channels, height, width] in [0, 1], words as int64 [n, words].
            outputs: number of logits of a record.
        """
        raise NotImplementedError

    def net(self, *, input_shape: tuple[int, ...], outputs: int) -> Net:
        from dpfedbench.models.net import Net

        sizes: dict[str, Any] = {"input_shape": input_shape, "outputs": outputs}
        return Net(lambda: self.module(**sizes), **sizes)
