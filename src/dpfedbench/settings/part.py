"""Settings that check themselves, and parts: settings with a behaviour, one file each, found by place.

A section of a configuration is a `Settings` class, whose fields are its keys. A `Part` is one of several that can stand
at the same place: its `kind` says which. All parts of a kind of thing (all clipping rules) are a family: a base class
without `kind`, whose `place` names the package that holds the family's modules. Adding a module there adds a part.

Every fault is a `BenchError` of one line with the full name of the key.
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Never, Self

import pydantic

from dpfedbench import imports, own_code
from dpfedbench.errors import BenchError
from dpfedbench.settings.discovery import check_functions, check_kind, imported
from dpfedbench.settings.keys import NOTHING, introduced, keep_inherited, refuse_other_meanings, refuse_shadowing
from dpfedbench.settings.keys import setting as setting
from dpfedbench.settings.values import as_wanted, bare, said_of
from dpfedbench.settings.words import dotted, looks_like, members, nearest, no_group, shown, unknown_kind


class Settings(pydantic.BaseModel):
    """A section of a configuration: cannot be changed, and cannot exist with an unknown key or a bad value.

    Text is read as the number, truth value or null that it stands for, where the key wants one: `--config` and YAML
    (1e-6) hand over text. 1 and 1.0 are one value, and a truth value is no number.

    Raises:
        BenchError: an unknown or missing key, or a value out of bounds.
    """

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )

    short: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Texts that may stand in place of a section, and what each stands for."""

    def __init__(self, **values: Any) -> None:
        _fill(self, values, "")

    # Tells pydantic that nothing is lost when it makes an instance without calling this.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a key that has the name of something that its bases have and that is no key."""
        super().__init_subclass__(**options)
        refuse_shadowing(cls)
        keep_inherited(cls)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Refuse a key that means something else in a base."""
        refuse_other_meanings(cls)

    @classmethod
    def read(cls, values: Any, where: str = "") -> Self:
        """Make one from plain values.

        Args:
            values: a mapping; at the place of a part, text stands for {kind: text}.
            where: the dotted key at which the values stand, for messages.

        Raises:
            BenchError: the first fault, unknown keys before others.
        """
        for message in _unknown(cls, values, where):
            raise BenchError(message)
        return _read(cls, values, where)

    def plain(self) -> dict[str, Any]:
        """Plain values of all keys, as config.yaml holds them; `read` makes an equal instance of them."""
        return {key: _plain(getattr(self, key)) for key in type(self).model_fields}

    def identity(self) -> dict[str, Any]:
        """The plain values that differ from the defaults at their keys' introduction; a part's kind, but `unsaid`."""
        differing: dict[str, Any] = {}
        tag, unsaid = getattr(self, "tag", "kind"), getattr(self, "unsaid", "")
        for key, before in introduced(type(self)).items():
            value = getattr(self, key)
            if value != unsaid if key == tag else before is NOTHING or value != before:
                differing[key] = value.identity() if isinstance(value, Settings) else _plain(value)
        return differing

    def replace(self, **changes: Any) -> Self:
        """A copy with other values at some keys, checked like any.

        Raises:
            BenchError: a value is out of bounds.
        """
        return type(self)(**{key: getattr(self, key) for key in type(self).model_fields} | changes)


class Section(Settings):
    """A section of a run, which may say something of the whole run."""

    def check(self, run: Never) -> None:
        """Check what has to hold between this section and the rest of the run.

        This class knows no run, so that its parameter is of no type. A section that overrides it says which: `Run`.

        Raises:
            BenchError: it does not hold; says which keys, and how to mend them.
        """

    def notices(self, run: Never) -> tuple[str, ...]:
        """What a reader of a private run's results must be told because of this section."""
        return ()

    @property
    def unaccounted(self) -> tuple[str, ...]:
        """Why what this section has computed from private data, before training, is a release without an event."""
        return ()


class Part(Section):
    """One of several that can stand at a place of a configuration.

    A family's base names the package of the family's modules as `place`. A part has a field `kind`, for instance
    `kind: Literal["constant"] = "constant"`; a family may call that key otherwise (`tag`). `implied_by` is a key that
    says the kind where `kind` is not given, and `unsaid` the kind where nothing does. `former` has keys that all of a
    family had once, and their defaults: a part that lacks one takes that value, and leaves it out.
    """

    place: ClassVar[str] = ""
    tag: ClassVar[str] = "kind"
    implied_by: ClassVar[str] = ""
    unsaid: ClassVar[str] = ""
    former: ClassVar[Mapping[str, Any]] = {}
    if typing.TYPE_CHECKING:
        kind: str


@functools.cache
def kind_of(cls: type[Settings]) -> str | None:
    """The kind of a part's class; None for the base of a family, and for a section that is no part."""
    if not issubclass(cls, Part) or cls.tag not in inspect.get_annotations(cls):
        return None
    return str(cls.model_fields[cls.tag].default)


@functools.cache
def kinds_of(base: type[Part]) -> dict[str, type[Part]]:
    """The parts of a family, or those that are subclasses of `base`, by kind.

    They are in the modules of the package that `place` names, and beside the family's base. A module whose name begins
    with "_" holds what parts share when they run, and is not looked into.

    Raises:
        BenchError: a module does not import, or two parts have one kind.
    """
    root = next(cls for cls in reversed(base.__mro__) if getattr(cls, "place", ""))
    return {kind: cls for kind, cls in _family(root).items() if issubclass(cls, base)}  # type: ignore[arg-type]


@functools.cache
def _family(root: type[Part]) -> dict[str, type[Part]]:
    modules = [importlib.import_module(root.__module__)]
    package = imported(root.place)
    names = [info.name for info in pkgutil.iter_modules(package.__path__)]
    modules += [imported(f"{root.place}.{name}") for name in names if not name.startswith("_")]
    own_code.check_names()
    family: dict[str, type[Part]] = {}
    for module in dict.fromkeys(modules):
        own = not imports.shipped(Path(module.__file__ or ""))
        for cls in list(vars(module).values()):
            if isinstance(cls, type) and issubclass(cls, root) and cls.__module__ == module.__name__:
                if own:
                    check_kind(cls)
                kind = kind_of(cls)
                if kind is None:
                    continue
                if own:
                    check_functions(cls, root)
                if family.setdefault(kind, cls) is not cls:
                    both = f"{family[kind].__module__} and {cls.__module__}"
                    raise BenchError(f"{both} both have a part of kind {kind!r}: give one of them another")
    return family


@dataclasses.dataclass(frozen=True, eq=False)
class Shape:
    """What can stand at a key: `sections` are its classes or families; `item` is what a list or a mapping holds."""

    annotation: Any
    nullable: bool
    sections: tuple[type[Settings], ...]
    item: "Shape | None" = None
    named: bool = False  # whether it holds its items by name, as a mapping does
    default: str | None = None  # the kind of the part that stands there where none is given

    @property
    def tag(self) -> str:
        """The key by which a part there says its kind."""
        return tag_of(self.sections)

    @functools.cached_property
    def parts(self) -> dict[str, type[Part]]:
        """The parts that can stand there, by kind."""
        parts: dict[str, type[Part]] = {}
        for cls in self.sections:
            if issubclass(cls, Part):
                kind = kind_of(cls)
                parts |= kinds_of(cls) if kind is None else {kind: cls}
        return parts

    @functools.cached_property
    def families(self) -> dict[str, type[Part]]:
        """All parts of the families whose parts can stand there, by kind, those that cannot among them."""
        parts: dict[str, type[Part]] = {}
        for cls in self.sections:
            roots = [above for above in cls.__mro__ if getattr(above, "place", "")]
            parts |= kinds_of(roots[-1]) if roots else {}
        return parts | self.parts


@functools.cache
def shapes(cls: type[Settings]) -> dict[str, Shape]:
    """What can stand at each key of a section."""
    return {key: _shape(field.annotation, field.default) for key, field in cls.model_fields.items()}


def _shape(annotation: Any, default: Any = None) -> Shape:
    choices = [bare(one) for one in members(annotation)]
    options = [one for one in choices if one is not NoneType]
    sections = tuple(one for one in options if isinstance(one, type) and issubclass(one, Settings))
    item, named = None, False
    if len(options) == 1 and not sections:
        origin, inner = typing.get_origin(options[0]), typing.get_args(options[0])
        if isinstance(origin, type) and inner and (issubclass(origin, (list, tuple, Mapping))):
            item = _shape(inner[-2] if origin is tuple and inner[-1] is ... else inner[-1])
            named = issubclass(origin, Mapping)
    unsaid = next((cls.unsaid for cls in sections if issubclass(cls, Part)), "")
    kind = kind_of(type(default)) if isinstance(default, Part) else unsaid or None
    return Shape(annotation, NoneType in choices, sections, item, named, kind)


def _plain(value: Any) -> Any:
    if isinstance(value, Settings):
        return value.plain()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def label(cls: type[Settings]) -> str:
    """What a section is called in a message: a method's name, a part's kind."""
    name = getattr(cls, "name", None)
    return name if isinstance(name, str) and name else kind_of(cls) or cls.__name__


def tag_of(classes: Sequence[type[Settings]]) -> str:
    """The key by which the parts of a family say their kind."""
    return next((cls.tag for cls in classes if issubclass(cls, Part)), "kind")


def spelled_out(value: Any, tag: str) -> Any:
    """What stands at the place of a part, text as {kind: text}."""
    return {tag: value} if isinstance(value, str) and value.lower() != "null" else value


def chosen(shape: Shape, value: Any) -> type[Settings] | None:
    """The class that the values at a place ask for; None where they do not say, or say something that is not there."""
    if isinstance(value, Settings):
        return type(value)
    parts = shape.parts
    if not parts:
        return shape.sections[0] if shape.sections else None
    value = spelled_out(value, shape.tag)
    if not isinstance(value, Mapping):
        return None
    if shape.tag in value:
        return parts.get(str(value[shape.tag]))
    implied = [cls for cls in parts.values() if cls.implied_by and cls.implied_by in value]
    if implied:
        return implied[0]
    return next(iter(parts.values())) if len(parts) == 1 else parts.get(shape.default or "")


def _unknown(cls: type[Settings], values: Any, where: str) -> Iterator[str]:
    """What to say of each key that is not known, down to all depths."""
    if not isinstance(values, Mapping):
        return
    keys = shapes(cls)
    for key in values:
        if key not in keys and not _is_former(cls, key, values[key]):
            yield unknown_key(cls, str(key), where)
    for key, shape in keys.items():
        if key in values:
            yield from _unknown_at(shape, values[key], dotted(where, key))


def _unknown_at(shape: Shape, value: Any, where: str) -> Iterator[str]:
    if shape.item is not None:
        inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for key, item in inner:
            yield from _unknown_at(shape.item, item, dotted(where, key))
    elif shape.sections and isinstance(value, Mapping):
        cls = chosen(shape, value)
        if cls is not None:
            yield from _unknown(cls, value, where)


def unknown_key(cls: type[Settings] | Sequence[type[Settings]], key: str, where: str) -> str:
    """What to say of a key that a section does not have, or none of several."""
    classes = [cls] if isinstance(cls, type) else list(cls)
    keys: dict[str, list[Shape]] = {}
    for one in classes:
        for name, shape in shapes(one).items():
            keys.setdefault(name, []).append(shape)
    said = f"unknown key {dotted(where, key)}: "
    if len(classes) == 1 and kind_of(classes[0]):
        family = Shape(None, False, (classes[0],)).families
        others = [kind for kind, other in family.items() if key in shapes(other)]
        if others:
            verb = "has" if len(others) == 1 else "have"
            return f"{said}{label(classes[0])} has no {key}, {', '.join(others)} {verb}"
    slip = looks_like(key, keys)
    if slip:
        return f"{said}did you mean {dotted(where, slip)}?"
    for section, at in keys.items():
        inner = [one for shape in at for one in (*shape.parts.values(), *shape.sections)]
        if key != "kind" and any(key in shapes(one) for one in inner):
            return f"{said}did you mean {dotted(where, section, key)}?"
    if not keys:
        return f"{said}no key is known there"
    return f"{said}the nearest valid key is {dotted(where, nearest(key, keys))}"


def _is_former(cls: type[Settings], key: str, value: Any) -> bool:
    former = getattr(cls, "former", {})
    return key in former and value == former[key]


def _read(cls: Any, values: Any, where: str) -> Any:
    if isinstance(values, cls):
        return values
    if isinstance(values, str):
        values = cls.short.get(values, values)
    if not isinstance(values, Mapping):
        raise BenchError(no_group(where or "the configuration", values))
    keys = shapes(cls)
    made = {key: _read_at(keys[key], value, dotted(where, key), cls) for key, value in values.items() if key in keys}
    return _fill(cls.__new__(cls), made, where)


def _read_at(shape: Shape, value: Any, where: str, owner: type[Settings]) -> Any:
    if shape.nullable and (value is None or (isinstance(value, str) and value.lower() == "null")):
        # Text is null only where it cannot be meant as text.
        return None if value is None or str not in members(shape.annotation) else value
    if shape.sections:
        return _read_part(shape, value, where, owner)
    if shape.item is not None and shape.named and isinstance(value, (list, tuple)):
        raise BenchError(no_group(where, value))
    if shape.item is not None and isinstance(value, Mapping):
        return {key: _read_at(shape.item, item, dotted(where, key), owner) for key, item in value.items()}
    if shape.item is not None and shape.item.sections and isinstance(value, (list, tuple)):
        return tuple(_read_at(shape.item, item, dotted(where, index), owner) for index, item in enumerate(value))
    return value


def _read_part(shape: Shape, value: Any, where: str, owner: type[Settings]) -> Settings:
    cls = chosen(shape, value)
    parts = shape.parts
    if not parts and cls is not None:
        return _read(cls, value, where)  # type: ignore[no-any-return]
    kinds = ", ".join(parts)
    value, tag = spelled_out(value, shape.tag), shape.tag
    if isinstance(value, Settings):
        if type(value) not in parts.values():
            raise BenchError(f"{where} is {label(type(value))}, which {label(owner)} does not take: it takes {kinds}")
        return value
    if not isinstance(value, Mapping):
        null = "null" if value is None else shown(value)
        raise BenchError(f"{where} is {null}, but {label(owner)} needs one: it takes {kinds}")
    if cls is None and tag not in value:
        raise BenchError(f"{where}.{tag} is missing: give one of {kinds}")
    if cls is None and str(value[tag]) in shape.families:
        raise BenchError(f"{where}.{tag} is {value[tag]}, which {label(owner)} does not take: it takes {kinds}")
    if cls is None:
        raise BenchError(unknown_kind(dotted(where, tag), value[tag], parts))
    return _read(cls, {tag: kind_of(cls)} | dict(value), where)  # type: ignore[no-any-return]


def _fill(instance: Any, values: Mapping[str, Any], where: str) -> Any:
    """Give a bare instance its values; the section's own checks run too."""
    cls = type(instance)
    fields = cls.model_fields
    ready = {key: as_wanted(fields[key].annotation, item) if key in fields else item for key, item in values.items()}
    try:
        cls.__pydantic_validator__.validate_python(ready, self_instance=instance)
    except pydantic.ValidationError as error:
        raise BenchError(_message(cls, error, values, where)) from None
    return instance


def _message(cls: type[Settings], error: pydantic.ValidationError, values: Mapping[str, Any], where: str) -> str:
    faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    key = str(fault["loc"][0]) if fault["loc"] else ""
    if fault["type"] == "extra_forbidden":
        return unknown_key(cls, key, where)
    if fault["type"] == "missing":
        needed = ", ".join(name for name, field in cls.model_fields.items() if field.is_required())
        return f"{dotted(where, key)} is missing: {needed} are needed there"
    if key not in cls.model_fields:
        return f"{where or 'the configuration'}: {fault['msg'].removeprefix('Value error, ')}"
    field = cls.model_fields[key]
    value = values.get(key, field.default)
    read = value if isinstance(value, bool) else as_wanted(field.annotation, value)
    return said_of(field, fault, dotted(where, key), read, fault["loc"][1:])
