"""Kinds of parts: the modules of a family, and its parts by kind.

A family is a base class whose `package` names the package that holds the family's
modules. A part is a class of the family with a kind, in a module of that package, of a
paper, or of a plugin; see `part.Part`. Clipping rules, noises, participations and
factorisations are families of dataclasses in `dpsum`.
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import pydantic

from dpfedbench import plugins
from dpfedbench.errors import BenchError
from dpsum.budget import Budget
from dpsum.clipping import ClippingRule
from dpsum.factorisations import Factorisation
from dpsum.noise import Noise
from dpsum.participation import Participation

Model = Any
"""Class of a section or a part: a `part.Settings`, or a frozen dataclass of `dpsum`."""

Base = TypeVar("Base", bound=pydantic.BaseModel)

PAPERS = "dpfedbench.papers"
"""Package whose modules each hold the methods and the parts of one paper."""


@dataclasses.dataclass(frozen=True)
class PartFamily:
    """Base class of a family, and where its parts are.

    Attributes:
        root: the base class.
        modules: modules that define parts.
        package: package of `dpfedbench` whose modules define further parts.
    """

    root: Model
    modules: tuple[str, ...]
    package: str


LIBRARY_FAMILIES = (
    PartFamily(ClippingRule, ("dpsum.clipping",), "dpfedbench.parts.clipping"),
    PartFamily(
        Noise,
        ("dpsum.noise", "dpsum.correlated_noise", "dpsum.skellam_noise"),
        "dpfedbench.parts.noise",
    ),
    PartFamily(
        Factorisation, ("dpsum.factorisations",), "dpfedbench.parts.factorisations"
    ),
    PartFamily(
        Participation, ("dpsum.participation",), "dpfedbench.parts.participation"
    ),
)


@plugins.cached
def library_family(cls: Any) -> PartFamily | None:
    """Return the family of `dpsum` that a class belongs to; None without one."""
    if not isinstance(cls, type):
        return None
    return next(
        (family for family in LIBRARY_FAMILIES if issubclass(cls, family.root)), None
    )


@plugins.cached
def is_library(cls: Any) -> bool:
    """Return whether a class is a part or a section that `dpsum` defines."""
    is_budget = isinstance(cls, type) and issubclass(cls, Budget)
    return is_budget or library_family(cls) is not None


@plugins.cached
def is_part(cls: Any) -> bool:
    """Return whether a section is a part, or a base of parts."""
    return hasattr(cls, "tag") or library_family(cls) is not None


@plugins.cached
def is_section(cls: Any) -> bool:
    """Return whether a class is a section of a configuration, here or in `dpsum`."""
    if is_library(cls):
        return True
    return isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


@functools.cache
def kind_of(cls: Model) -> str | None:
    """Return the kind of a part's class.

    It is None for the base of a family, and for a section that is not a part.
    """
    if library_family(cls) is not None:
        return str(vars(cls).get("kind", "")) or None
    if not is_part(cls) or cls.tag not in inspect.get_annotations(cls):
        return None
    return str(cls.model_fields[cls.tag].default)


def tag_of(classes: Sequence[Model]) -> str:
    """Return the key that holds the kind of the parts of a family."""
    tags = (getattr(cls, "tag", "kind") for cls in classes if is_part(cls))
    return next(tags, "kind")


@plugins.cached
def kinds_of(base: type[Base]) -> dict[str, type[Base]]:
    """Return the parts of a family, or those that are subclasses of `base`, by kind.

    They are in the modules of the package that `package` names, in the module of the
    family's base, in the papers' modules, and in plugins. A module whose name begins
    with "_" holds code that several parts share, and is not searched.

    Raises:
        BenchError: two parts have one kind.
    """
    parts = _parts_of_family(root_of(base))
    return {kind: cls for kind, cls in parts.items() if issubclass(cls, base)}


def root_of(cls: Model) -> Model:
    """Return the base of the family that a part belongs to."""
    family = library_family(cls)
    if family is not None:
        return family.root
    return next(base for base in reversed(cls.__mro__) if getattr(base, "package", ""))


@plugins.cached
def _parts_of_family(root: Model) -> dict[str, Model]:
    """Return all parts of a family by kind, given the family's base."""
    family = library_family(root) or PartFamily(root, (root.__module__,), root.package)
    modules = [
        *map(importlib.import_module, family.modules),
        *modules_in(family.package),
        *modules_in(PAPERS),
    ]
    parts: dict[str, Model] = {}
    for cls in [*defined_in(modules, root), *plugins.classes(root)]:
        kind = kind_of(cls)
        if kind is None:
            continue
        if library_family(cls) is not None:
            _check_decorated(cls)
        if kind in parts:
            raise BenchError(
                f"{parts[kind].__module__} and {cls.__module__} both have a part of"
                f" kind {kind!r}: give one of them another"
            )
        parts[kind] = cls
    return dict(sorted(parts.items()))


def _check_decorated(cls: Any) -> None:
    """Refuse a class with a parameter that is not decorated as a dataclass.

    Such a parameter would be ignored.

    Raises:
        BenchError: names the class and the parameter.
    """
    declared = {field.name for field in dataclasses.fields(cls)} | {"kind"}
    for key, annotation in inspect.get_annotations(cls).items():
        if key not in declared and "ClassVar" not in str(annotation):
            raise BenchError(
                f"{cls.__module__}.{cls.__name__} has a key {key!r}, but is not a"
                " dataclass: put @dataclasses.dataclass(frozen=True) above it, or write"
                f" {key}: ClassVar[...] = ... where it is not a key"
            )


def modules_in(package: str) -> list[ModuleType]:
    """Import the modules of a package and of its subpackages, except those whose names
    begin with "_".
    """
    folders = importlib.import_module(package).__path__
    names = [info.name for info in pkgutil.walk_packages(folders, f"{package}.")]
    return [
        importlib.import_module(name)
        for name in sorted(names)
        if not name.rpartition(".")[2].startswith("_")
    ]


def defined_in(modules: Iterable[ModuleType], base: type) -> list[Model]:
    """Return the classes that these modules define and that extend `base`."""
    extending = (
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == module.__name__
    )
    return list(dict.fromkeys(extending))
