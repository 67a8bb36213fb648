"""Families of parts: the parts that a key of a section accepts, by kind, and the
message about an unknown key.

A family is a base class whose `package` names the package that holds the family's
modules. A part is a class of the family with a kind, in a module of that package, of a
paper, or of a plugin; see `part.Part`.
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType, NoneType
from typing import Any, TypeVar

import pydantic

from dpfedbench import plugins
from dpfedbench.errors import BenchError
from dpfedbench.settings.library import (
    LibraryFamily,
    check_decorated,
    family_of,
    fields_of,
)
from dpfedbench.settings.messages import dotted, nearest
from dpfedbench.settings.values import bare, members

Model = Any
"""Class of a section or a part. It extends `part.Settings`, which imports this module,
so that no type can name it here.
"""

Base = TypeVar("Base", bound=pydantic.BaseModel)

PAPERS = "dpfedbench.papers"
"""Package whose modules each hold the methods and the parts of one paper."""


def is_part(cls: Any) -> bool:
    """Return whether a section is a part, or a base of parts."""
    return hasattr(cls, "tag") or family_of(cls) is not None


def is_section(cls: Any) -> bool:
    """Return whether a class is a section of a configuration, or a part of `dpsum`."""
    if family_of(cls) is not None:
        return True
    return isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


@functools.cache
def kind_of(cls: Model) -> str | None:
    """Return the kind of a part's class.

    It is None for the base of a family, and for a section that is not a part.
    """
    if family_of(cls) is not None:
        return str(vars(cls).get("kind", "")) or None
    if not is_part(cls) or cls.tag not in inspect.get_annotations(cls):
        return None
    return str(cls.model_fields[cls.tag].default)


@plugins.cached
def kinds_of(base: type[Base]) -> dict[str, type[Base]]:
    """Return the parts of a family, or those that are subclasses of `base`, by kind.

    They are in the modules of the package that `package` names, in the module of the
    family's base, in the papers' modules, and in plugins. A module whose name begins
    with "_" holds code that several parts share, and is not searched.

    Raises:
        BenchError: two parts have one kind.
    """
    root = root_of(base)
    return {kind: cls for kind, cls in _family(root).items() if issubclass(cls, base)}  # type: ignore[arg-type]


def root_of(cls: Model) -> Model:
    """Return the base of the family that a part belongs to."""
    family = family_of(cls)
    if family is not None:
        return family.root
    return next(base for base in reversed(cls.__mro__) if getattr(base, "package", ""))


@plugins.cached
def _family(root: Model) -> dict[str, Model]:
    """Return all parts of a family by kind, given the family's base."""
    family_in_library = family_of(root) or LibraryFamily(
        root, (root.__module__,), root.package
    )
    modules = [
        *map(importlib.import_module, family_in_library.modules),
        *modules_in(family_in_library.package),
        *modules_in(PAPERS),
    ]
    family: dict[str, Model] = {}
    for cls in [*defined_in(modules, root), *plugins.classes(root)]:
        kind = kind_of(cls)
        if kind is None:
            continue
        if family_of(cls) is not None:
            check_decorated(cls)
        if kind in family:
            modules_of_both = f"{family[kind].__module__} and {cls.__module__}"
            raise BenchError(
                f"{modules_of_both} both have a part of kind {kind!r}: give one of them another"
            )
        family[kind] = cls
    return dict(sorted(family.items()))


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


@dataclasses.dataclass(frozen=True, eq=False)
class Shape:
    """Schema of one configuration key.

    Attributes:
        annotation: type of the value.
        nullable: whether the value may be null.
        sections: the allowed section classes or families.
        item: schema of the elements of a list or mapping.
        named: whether the key holds its elements by name, as a mapping does.
        default: kind of the part where the configuration gives none.
    """

    annotation: Any
    nullable: bool
    sections: tuple[Model, ...]
    item: "Shape | None" = None
    named: bool = False
    default: str | None = None

    @functools.cached_property
    def tag(self) -> str:
        """Key that holds the kind of the part."""
        return tag_of(self.sections)

    @functools.cached_property
    def parts(self) -> dict[str, Model]:
        """Parts that the key accepts, by kind."""
        parts: dict[str, Model] = {}
        for cls in self.sections:
            if is_part(cls):
                kind = kind_of(cls)
                parts |= kinds_of(cls) if kind is None else {kind: cls}
        return parts

    @functools.cached_property
    def families(self) -> dict[str, Model]:
        """All parts of the families whose parts the key accepts, by kind.

        They include parts of these families that the key does not accept.
        """
        parts: dict[str, Model] = {}
        for cls in self.sections:
            parts |= kinds_of(root_of(cls)) if is_part(cls) else {}
        return parts | self.parts


@plugins.cached
def shapes(cls: Model) -> dict[str, Shape]:
    """Return the schema of each key of a section."""
    return {
        key: _shape(field.annotation, field.default)
        for key, field in fields_of(cls).items()
    }


def _shape(annotation: Any, default: Any = None) -> Shape:
    choices = [bare(choice) for choice in members(annotation)]
    options = [choice for choice in choices if choice is not NoneType]
    sections: tuple[Model, ...] = tuple(filter(is_section, options))
    item = None
    named = False
    if len(options) == 1 and not sections:
        origin = typing.get_origin(options[0])
        inner = typing.get_args(options[0])
        if (
            isinstance(origin, type)
            and inner
            and (issubclass(origin, (list, tuple, Mapping)))
        ):
            item = _shape(
                inner[-2] if origin is tuple and inner[-1] is ... else inner[-1]
            )
            named = issubclass(origin, Mapping)
    default_kind = next(
        (getattr(cls, "default_kind", "") for cls in sections if is_part(cls)), ""
    )
    of_default: Model = type(default)
    kind = kind_of(of_default) if is_part(of_default) else default_kind or None
    return Shape(annotation, NoneType in choices, sections, item, named, kind)


def label(cls: Model) -> str:
    """Return the name of a section for messages: a method's name, or a part's kind."""
    name = getattr(cls, "name", None)
    return name if isinstance(name, str) and name else kind_of(cls) or cls.__name__


def tag_of(classes: Sequence[Model]) -> str:
    """Return the key that holds the kind of the parts of a family."""
    tags = (getattr(cls, "tag", "kind") for cls in classes if is_part(cls))
    return next(tags, "kind")


def spelled_out(value: Any) -> Any:
    """Return the value at the key of a part, with text as {kind: text}."""
    if isinstance(value, str) and value.lower() != "null":
        return {"kind": value}
    return value


def chosen(shape: Shape, value: Any) -> Model | None:
    """Return the class that a value at a key selects; None without a known kind."""
    if is_section(type(value)):
        return type(value)
    parts = shape.parts
    if not parts:
        return shape.sections[0] if shape.sections else None
    value = spelled_out(value)
    if not isinstance(value, Mapping):
        return None
    if shape.tag in value:
        return parts.get(str(value[shape.tag]))
    if len(parts) == 1:
        return next(iter(parts.values()))
    return parts.get(shape.default or "")


def unknown_key(classes: Sequence[Model], key: str, where: str) -> str:
    """Return the message about a key that none of several sections has.

    It suggests a similar key of these sections, or the same key one level below.

    Args:
        classes: the sections.
        key: the unknown key.
        where: the dotted key of the sections.
    """
    own_keys: dict[str, str] = {}
    inner_keys: dict[str, str] = {}
    for cls in classes:
        for name, shape in shapes(cls).items():
            own_keys[name] = name
            for inner in (*shape.parts.values(), *shape.sections):
                inner_keys |= {key: dotted(name, key) for key in shapes(inner)}
    message = f"unknown key {dotted(where, key)}"
    similar = own_keys.get(str(nearest(key, own_keys, cutoff=0.6)))
    known = similar or inner_keys.get(key)
    if known is None or key == "kind":
        return message
    return f"{message}: the nearest known key is {dotted(where, known)}"
