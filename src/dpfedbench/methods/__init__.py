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
import re
from collections.abc import Iterable
from types import ModuleType

from dpfedbench.errors import BenchError

PARTS = ("NAME", "TITLE", "PAPER", "VERSION", "PRIVATE", "DEFAULTS", "compose")


def by_name(modules: Iterable[ModuleType]) -> dict[str, ModuleType]:
    """The methods by their names.

    Raises:
        BenchError: a module lacks a part, or has a name that is malformed or another's; says which.
    """
    found: dict[str, ModuleType] = {}
    for module in modules:
        missing = [part for part in PARTS if not hasattr(module, part)]
        if missing:
            raise BenchError(f"the method module {module.__name__} has no {missing[0]}: it needs {', '.join(PARTS)}")
        if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", module.NAME):
            raise BenchError(
                f"the method module {module.__name__} has the NAME {module.NAME!r}: "
                "use lower-case letters, digits and hyphens"
            )
        if module.NAME in found:
            raise BenchError(
                f"the method modules {found[module.NAME].__name__} and {module.__name__} both have the NAME "
                f"{module.NAME!r}: give one of them another"
            )
        found[module.NAME] = module
    return found


METHODS: dict[str, ModuleType] = by_name(
    importlib.import_module(f"{__name__}.{name}")
    for name in sorted(info.name for info in pkgutil.iter_modules(__path__))
)
