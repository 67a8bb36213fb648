"""The methods by name. A method is one module of this package, found by its place; see
docs/add-a-method.md.

Those of one's own may lie elsewhere (`dpfedbench.own_code`).
"""

import pkgutil
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from dpfedbench import imports, own_code
from dpfedbench.errors import BenchError
from dpfedbench.method import Method, read_run, read_run_file
from dpfedbench.settings.discovery import check_functions, imported, place
from dpfedbench.settings.part import Part, kinds_of

__all__ = ["METHODS", "by_name", "read_run", "read_run_file"]


def by_name(modules: Iterable[ModuleType]) -> dict[str, type[Method]]:
    """The methods in some modules by their names.

    Raises:
        BenchError: a name that is malformed or another's, or a title that is missing;
            says whose.
    """
    methods: dict[str, type[Method]] = {}
    for module in modules:
        for cls in vars(module).values():
            if not (
                isinstance(cls, type)
                and issubclass(cls, Method)
                and cls.__module__ == module.__name__
            ):
                continue
            if "name" not in vars(cls):
                if not cls.__subclasses__():
                    raise BenchError(
                        f"{place(cls)}: {cls.__name__} has no name, by which a"
                        " configuration names it: write "
                        f'name: ClassVar[str] = "{cls.__name__.lower()}"'
                    )
                continue  # what several methods have in common
            if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", cls.name):
                raise BenchError(
                    f"the method {cls.__name__} in {module.__name__} has the name"
                    f" {cls.name!r}: use lower-case letters, digits and hyphens"
                )
            if not cls.title:
                raise BenchError(
                    f"the method {cls.__name__} in {module.__name__} has no title:"
                    " tables print it"
                )
            if cls.name in methods:
                raise BenchError(
                    f"the methods in {methods[cls.name].__module__} and"
                    f" {module.__name__} both have the name {cls.name!r}: give one of"
                    " them another"
                )
            if not imports.shipped(Path(getattr(module, "__file__", None) or "")):
                _check(cls)
            methods[cls.name] = cls
    return methods


def _check(cls: type[Method]) -> None:
    """Refuse a method of one's own that says too little, or whose functions are not
    called as it takes them.

    Raises:
        BenchError: says where, and how to mend it.
    """
    if cls.trained and cls.server_sum is Method.server_sum:
        raise BenchError(
            f"{place(cls)}: {cls.__name__} has no server_sum: extend OverClients,"
            " OverLots or OverParties, or write one"
        )
    if cls.trained and "client_update" not in cls.model_fields:
        raise BenchError(
            f"{place(cls)}: {cls.__name__} has no client_update: say which it takes,"
            " for instance client_update: Maml = Maml()"
        )
    check_functions(cls, Method)


def _found() -> list[ModuleType]:
    own_code.check()
    names = [
        info.name
        for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name)
    ]
    modules = [imported(f"{__name__}.{name}") for name in names]
    for package in own_code.packages():
        if package.startswith(
            ("dpfedbench.parts.", "dpfedbench.models.", "dpfedbench.settings.")
        ):
            _read_family(package)
    own_code.check_names()
    return modules


def _read_family(package: str) -> None:
    """Read the parts of one's own at a place, also those that no run has: a fault in
    one is said now.
    """
    inside = (info.name for info in pkgutil.iter_modules(imported(package).__path__))
    for name in [name for name in inside if not name.startswith("_")]:
        imported(f"{package}.{name}")
    waiting: list[type[Part]] = [Part]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if vars(cls).get("place") == package:
            kinds_of(cls)


METHODS = Method.known
METHODS.update(sorted(by_name(_found()).items()))
