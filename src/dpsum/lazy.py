"""numpy, loaded when it is first used: a plan of the workflow is read where numpy is
not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["Lazy", "np"]


class Lazy:
    """Stands for a module, and imports it when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)  # the next time it is there at once
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazy("numpy")
