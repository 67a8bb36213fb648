"""Import of numpy on first use: the workflow reads plans where numpy is missing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["Lazy", "np"]


class Lazy:
    """Proxy of a module that imports it when an attribute is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)  # later reads do not come here
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazy("numpy")
