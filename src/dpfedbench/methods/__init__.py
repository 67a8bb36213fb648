"""The methods: each module composes the parts of `federation` and `privacy`, and does nothing else.

A module is a method if it has

- NAME, its name in configurations; TITLE, its name for readers; PAPER, where it is from;
- VERSION, raised when its results change, so that the workflow runs it again, and no other;
- PRIVATE, whether it claims privacy;
- DEFAULTS, the overlay of configuration values that makes it this method;
- compose(config), which returns its `federation.composition.Composition`.
"""

import importlib
import pkgutil
from types import ModuleType


def _found() -> dict[str, ModuleType]:
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    return {module.NAME: module for module in sorted(modules, key=lambda module: module.__name__)}


METHODS: dict[str, ModuleType] = _found()
