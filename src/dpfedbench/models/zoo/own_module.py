"""A `torch.nn.Module` of the user's own."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.config.model_settings import ModelSettings
from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError

if TYPE_CHECKING:
    from torch import nn

    from dpfedbench.models.net import Net


class OwnModule(ModelSettings):
    """Any module from a file of the user, constructed with `arguments`.

    A constructor with parameters `input_shape` and `outputs` receives both.
    """

    kind: Literal["module"] = "module"
    module: str = setting(
        pattern=r"^[^\s:]+:[A-Za-z_]\w*$",
        doc='location of the class: "package.file:Class"',
    )
    arguments: dict[str, Any] = setting({}, doc="arguments of the class's constructor")

    @property
    def text(self) -> str:
        """Digest of the file that defines the class, or empty if it is not found.

        Files that it imports are not part of the digest.
        """
        search_path = [*sys.path, str(Path.cwd())]
        origin = None
        for name in self.module.partition(":")[0].split(
            "."
        ):  # found without importing it
            spec = PathFinder.find_spec(name, search_path)
            if spec is None:
                return ""
            search_path = list(spec.submodule_search_locations or ())
            origin = spec.origin
        return (
            hashlib.sha256(Path(origin).read_bytes()).hexdigest()[:16] if origin else ""
        )

    def net(self, *, input_shape: tuple[int, ...], outputs: int) -> Net:
        """Return the model.

        A package beside the working directory is found as well as an installed one.

        Raises:
            BenchError: the file or class does not exist, or the class is no
                `torch.nn.Module`.
        """
        from dpfedbench.models.net import Net

        module = self._class()
        sizes = {"input_shape": input_shape, "outputs": outputs}
        taken = inspect.signature(module).parameters
        arguments = {
            name: value for name, value in sizes.items() if name in taken
        } | self.arguments

        def build() -> nn.Module:
            return module(**arguments)

        return Net(build, input_shape=input_shape, outputs=outputs)

    def _class(self) -> type[nn.Module]:
        from torch import nn

        file, _, name = self.module.partition(":")
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        try:
            imported = importlib.import_module(file)
        except ModuleNotFoundError as error:
            if not f"{file}.".startswith(f"{error.name}."):
                raise
            raise BenchError(f"model.module: there is no module {file}") from None
        module = getattr(imported, name, None)
        if module is None:
            raise BenchError(f"model.module: {file} has no {name}")
        if not (isinstance(module, type) and issubclass(module, nn.Module)):
            raise BenchError(f"model.module: {self.module} is not a torch.nn.Module")
        return module
