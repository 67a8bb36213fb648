"""Find the module that reads a data set, in this package or in a plugin."""

import pkgutil

from dpfedbench import data, plugins
from dpfedbench.errors import BenchError


def reader_modules() -> dict[str, str]:
    """Return the modules that can read data: dotted names by reader names.

    A reader's name is the last part of its module's name, with hyphens: the module
    `my_package.stripes` is the reader `stripes`.

    Raises:
        BenchError: two readers have the same name.
    """
    modules = [
        f"{data.__name__}.{info.name}" for info in pkgutil.iter_modules(data.__path__)
    ]
    modules += [module.__name__ for module in plugins.modules() if _reads(module)]
    readers: dict[str, str] = {}
    for module in modules:
        name = module.rpartition(".")[2].replace("_", "-")
        if name in readers:
            raise BenchError(
                f"{readers[name]} and {module} both define the reader {name!r}:"
                " rename one"
            )
        readers[name] = module
    return readers


def _reads(module: object) -> bool:
    """Return whether a module itself defines a function `read`."""
    read = getattr(module, "read", None)
    return callable(read) and getattr(read, "__module__", "") == getattr(
        module, "__name__", None
    )
