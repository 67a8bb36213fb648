"""Find the module that reads a data set: one of this package, or one of a plugin."""

import pkgutil

from dpfedbench import data, plugins
from dpfedbench.errors import BenchError


def reader_modules() -> dict[str, str]:
    """Return the modules that may read data, as dotted names by the readers' names.

    A reader has the last name of its module, with hyphens: `stripes` is read by
    `my_package.stripes`.

    Raises:
        BenchError: two readers have one name.
    """
    modules = [f"{data.__name__}.{info.name}" for info in _shipped()]
    modules += [module.__name__ for module in plugins.modules() if _reads(module)]
    readers: dict[str, str] = {}
    for module in modules:
        name = module.rpartition(".")[2].replace("_", "-")
        if name in readers:
            raise BenchError(
                f"{readers[name]} and {module} are both the reader {name!r}: rename one"
            )
        readers[name] = module
    return readers


def _shipped() -> list[pkgutil.ModuleInfo]:
    return list(pkgutil.iter_modules(data.__path__))


def _reads(module: object) -> bool:
    """Whether a module defines a function `read` itself."""
    read = getattr(module, "read", None)
    return callable(read) and getattr(read, "__module__", "") == getattr(
        module, "__name__", None
    )
