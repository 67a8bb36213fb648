"""The methods by name. A method is one module of this package, found by its place; see docs/add-a-method.md."""

import importlib
import pkgutil
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.manifest import mend
from dpfedbench.methods.method import Method
from dpfedbench.settings.run import read_yaml
from dpfedbench.settings.words import nearest


def by_name(modules: Iterable[ModuleType]) -> dict[str, type[Method]]:
    """The methods in some modules by their names.

    Raises:
        BenchError: a name that is malformed or another's, or a title that is missing; says whose.
    """
    found: dict[str, type[Method]] = {}
    for module in modules:
        for cls in vars(module).values():
            if not (isinstance(cls, type) and issubclass(cls, Method) and cls.__module__ == module.__name__):
                continue
            if "name" not in vars(cls):
                continue  # what several methods have in common
            if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", cls.name):
                raise BenchError(
                    f"the method {cls.__name__} in {module.__name__} has the name {cls.name!r}: "
                    "use lower-case letters, digits and hyphens"
                )
            if not cls.title:
                raise BenchError(f"the method {cls.__name__} in {module.__name__} has no title: tables print it")
            if cls.name in found:
                raise BenchError(
                    f"the methods in {found[cls.name].__module__} and {module.__name__} both have the name "
                    f"{cls.name!r}: give one of them another"
                )
            found[cls.name] = cls
    return found


METHODS: dict[str, type[Method]] = by_name(
    importlib.import_module(f"{__name__}.{info.name}")
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name)
    if info.name != "method"
)


def read_run(values: Mapping[str, Any]) -> Method:
    """A run from plain values, `method` among them.

    Raises:
        BenchError: an unknown method, or values that do not fit it.
    """
    name = values.get("method")
    if not isinstance(name, str) or name not in METHODS:
        raise BenchError(f"method is {name!r}: there is no such method, the nearest is {nearest(str(name), METHODS)!r}")
    return METHODS[name].read(values)


def read_run_file(path: Path | str) -> Method:
    """A run from the config.yaml in its folder.

    Raises:
        BenchError: it is missing, damaged, of the former format, holds a bad value, or is another run's than its
            folder, whose name follows from what it says.
    """
    run, place = read_run(read_yaml(path)), Path(path).resolve().parent
    if place.parts[-5:] != Path(run.folder).parts:
        raise BenchError(
            f"{path} does not belong there, its values are those of {run.folder}: {mend(Path(path), 'configure')}"
        )
    return run
