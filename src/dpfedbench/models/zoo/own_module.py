"""A torch.nn.Module of the user's own."""

from __future__ import annotations

import hashlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
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

    @property
    def text(self) -> str:
        """A digest of the file that the class is in, and not of what that imports; empty where it is not found."""
        places, origin = [*sys.path, str(Path.cwd())], None
        for name in self.module.partition(":")[0].split("."):  # nothing is imported for it
            spec = PathFinder.find_spec(name, places)
            if spec is None:
                return ""
            places, origin = list(spec.submodule_search_locations or ()), spec.origin
        return hashlib.sha256(Path(origin).read_bytes()).hexdigest()[:16] if origin else ""

    def net(self, *, input_shape: tuple[int, ...], outputs: int) -> Net:
        from dpfedbench.models.loading import load_module
        from dpfedbench.models.net import Net

        build = load_module(self.module, self.arguments, input_shape=input_shape, outputs=outputs)
        vocabulary = outputs if len(input_shape) == 1 else 0
        return Net(build, input_shape=input_shape, outputs=outputs, vocabulary=vocabulary)
