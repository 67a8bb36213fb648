"""A torch.nn.Module of the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.settings.part import setting
from dpfedbench.settings.run import ModelSettings

if TYPE_CHECKING:
    from dpfedbench.models.net import Net


class OwnModule(ModelSettings):
    """Any module that a file of one's own defines, made with `arguments`.

    A constructor that has parameters `input_shape` and `outputs` is given them.
    """

    implied_by: ClassVar[str] = "module"
    kind: Literal["module"] = "module"
    module: str = setting(pattern=r"^[^\s:]+:[A-Za-z_]\w*$", doc='where its class is: "package.file:Class"')
    arguments: dict[str, Any] = setting({}, doc="what the class is called with")

    def net(self, *, input_shape: tuple[int, ...], outputs: int) -> Net:
        from dpfedbench.models.net import Net, load_module

        build = load_module(self.module, self.arguments, input_shape=input_shape, outputs=outputs)
        vocabulary = outputs if len(input_shape) == 1 else 0
        return Net(build, input_shape=input_shape, outputs=outputs, vocabulary=vocabulary)
