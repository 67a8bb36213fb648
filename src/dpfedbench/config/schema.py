"""Schema of sections: what each key accepts, how pydantic reads its value, and the plain
values that a section is read from and written as.

Pydantic validates everything. This module adds three things: a part is selected by its
kind among the parts that are known when the value is read, so that plugins can add
some; dataclasses of `dpsum` are read like sections; and text is accepted where it
stands for a null, a literal value or a number.
"""

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, PydanticUndefined

from dpfedbench import plugins
from dpfedbench.config.kinds import (
    Model,
    is_library,
    is_part,
    is_section,
    kind_of,
    kinds_of,
    tag_of,
)
from dpfedbench.config.messages import describe, nearest
from dpfedbench.errors import BenchError


def setting(
    default: Any = PydanticUndefined,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    pattern: str | None = None,
    doc: str = "",
    paper: str = "",
) -> Any:
    """Declare a key of a section.

    Args:
        default: the default value; without it the key is required.
        gt: the value has to be above this; likewise `ge` (at least), `lt` (below) and
            `le` (at most).
        ge: see `gt`.
        lt: see `gt`.
        le: see `gt`.
        pattern: a regular expression for text.
        doc: meaning of the key, for docs/configuration.md.
        paper: the paper's value, where there is one.
    """
    return pydantic.Field(
        default,
        gt=gt,
        ge=ge,
        lt=lt,
        le=le,
        pattern=pattern,
        description=doc,
        json_schema_extra={"paper": paper},
    )


class KeyedModel(pydantic.BaseModel):
    """Immutable pydantic model that reads parts by their kind."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _check_keys(cls, values: Any) -> Any:
        if is_section(type(values)):
            return values
        if not isinstance(values, Mapping):
            raise PydanticCustomError("no_group", "expected a group of keys")
        known = cls.model_fields
        for key in values:
            if key not in known:
                raise _unknown_key(cls, key)
        return values

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _read_key(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        return read_value(keys_of(cls)[str(info.field_name)], value)

    @classmethod
    def read(cls, values: Any, where: str = "") -> Self:
        """Create an instance from plain values.

        Args:
            values: a mapping.
            where: the dotted key of the values, for messages.

        Raises:
            BenchError: the first fault; unknown keys before others.
        """
        try:
            return cls.model_validate(values)
        except pydantic.ValidationError as error:
            raise BenchError(describe(error, values, where)) from None


def with_kind(value: Any) -> Any:
    """Return the value at the key of a part, with text as {kind: text}."""
    if isinstance(value, str) and value.lower() != "null":
        return {"kind": value}
    return value


@dataclasses.dataclass(frozen=True, eq=False)
class Key:
    """Schema of one key of a section.

    Attributes:
        annotation: type of the value.
        default: default value.
        nullable: whether the value may be null.
        bases: the sections, parts or families that the type names.
    """

    annotation: Any
    default: Any
    nullable: bool
    bases: tuple[Model, ...]

    @functools.cached_property
    def tag(self) -> str:
        """Key that holds the kind of the part."""
        return tag_of(self.bases)

    @functools.cached_property
    def parts(self) -> dict[str, Model]:
        """Parts that the key accepts, by kind."""
        parts: dict[str, Model] = {}
        for cls in filter(is_part, self.bases):
            kind = kind_of(cls)
            parts |= kinds_of(cls) if kind is None else {kind: cls}
        return parts

    @functools.cached_property
    def classes(self) -> tuple[Model, ...]:
        """Sections or parts that the key accepts."""
        return tuple(self.parts.values()) or self.bases

    @property
    def default_kind(self) -> str | None:
        """Kind of the part where the configuration gives none."""
        cls: Model = type(self.default)
        if is_part(cls):
            return kind_of(cls)
        return next((getattr(base, "default_kind", None) for base in self.bases), None)

    def chosen(self, values: Mapping[str, Any]) -> Model | None:
        """Return the class that values select; None without a known kind."""
        if not self.parts:
            return next(iter(self.bases), None)
        if self.tag in values:
            return self.parts.get(str(values[self.tag]))
        if len(self.parts) == 1:
            return next(iter(self.parts.values()))
        return self.parts.get(self.default_kind or "")


@plugins.cached
def keys_of(cls: Model) -> dict[str, Key]:
    """Return the keys of a section, by name."""
    keys = {}
    for name, field in fields_of(cls).items():
        options = [bare(option) for option in members(field.annotation)]
        keys[name] = Key(
            annotation=field.annotation,
            default=field.default,
            nullable=NoneType in options,
            bases=tuple(filter(is_section, options)),
        )
    return keys


@plugins.cached
def fields_of(cls: Any) -> dict[str, FieldInfo]:
    """Return the keys of a section or of a dataclass of `dpsum`, as pydantic's."""
    model = model_of(cls) if is_library(cls) else cls
    return model.model_fields


@functools.cache
def model_of(cls: Any) -> type[KeyedModel]:
    """Return the pydantic model with the keys of a dataclass of `dpsum`.

    The fields that `dpsum.parameters.parameter` declares are the keys.
    """
    hints = typing.get_type_hints(cls)
    keys: dict[str, Any] = {}
    if kind := getattr(cls, "kind", ""):
        keys["kind"] = (Literal[kind], kind)
    for field in dataclasses.fields(cls):
        if "doc" not in field.metadata:
            continue
        metadata = field.metadata
        info = setting(
            field.default,
            doc=metadata["doc"],
            paper=metadata["paper"],
            **metadata["bounds"],
        )
        keys[field.name] = (hints[field.name], info)
    return pydantic.create_model(
        cls.__name__, __base__=KeyedModel, __module__=cls.__module__, **keys
    )


def read_value(key: Key, value: Any) -> Any:
    """Return the value at a key as pydantic accepts it, with parts as instances.

    Raises:
        PydanticCustomError: an unknown kind, or an unknown key of a part.
        pydantic.ValidationError: a fault within a part.
    """
    if not key.bases:
        return convert(key.annotation, value)
    if is_section(type(value)):
        return value
    if not any(map(is_part, key.bases)):
        if any(map(is_library, key.bases)):
            return _read_part(key.bases[0], value)
        return convert(key.annotation, value)
    value = with_kind(value)
    if key.nullable and value in (None, "null"):
        return None
    cls = key.chosen(value) if isinstance(value, Mapping) else None
    if cls is None:
        kinds = ", ".join(key.parts)
        raise PydanticCustomError(
            "unknown_kind", "expected one of {kinds}", {"tag": key.tag, "kinds": kinds}
        )
    if hasattr(cls, "former_names"):
        value = _with_current_names(cls, value)
    for name in value:
        if name not in fields_of(cls):
            raise _unknown_key(cls, name, key.parts)
    return _read_part(cls, {key.tag: kind_of(cls), **value})


def _with_current_names(cls: Model, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a part with the current names of renamed keys.

    Identities of runs, and results of earlier versions, have the earlier names.
    Overlays are refused if they have them (`dpfedbench.config.merge.lay`).
    """
    renamed = dict(values)
    for name, former_name in cls.former_names.items():
        if former_name in renamed and name not in renamed:
            renamed[name] = renamed.pop(former_name)
    return renamed


def _read_part(cls: Model, values: Mapping[str, Any]) -> Any:
    """Return a part with these values."""
    if not is_library(cls):
        return cls.model_validate(values)
    model = model_of(cls).model_validate(values)
    return cls(**{key: getattr(model, key) for key in fields_of(cls) if key != "kind"})


_EXPONENT = re.compile(r"[+-]?[\d.]+[eE][+-]?\d+")


def convert(annotation: Any, value: Any) -> Any:
    """Return the value that a text or a truth value stands for at a key.

    Pydantic converts other values: text to a number, a list to a tuple. It would read a
    truth value as a number, also within a list or a mapping.

    Raises:
        PydanticCustomError: a truth value at a key that accepts none.
    """
    if value is None or type(value) in (int, float):
        return value
    options, literals = _options(annotation)
    if isinstance(value, str):
        return _convert_text(options, literals, value)
    if isinstance(value, (list, tuple, Mapping)):
        return _convert_items(options, value)
    if isinstance(value, bool) and not {bool, Any} & set(options):
        if literals:
            return "on" if value else "off"  # YAML reads both as truth values
        raise PydanticCustomError("truth_value", "expected no truth value")
    return value


def _convert_text(
    options: Sequence[Any], literals: Mapping[str, Any], value: str
) -> Any:
    """Return the value that a text stands for, as `convert` does."""
    if value == "null" and NoneType in options:
        return None
    is_number = int in options and str not in options and value not in literals
    if is_number and _EXPONENT.fullmatch(value):
        return float(value)
    return literals.get(value, value)


def _convert_items(
    options: Sequence[Any], value: Sequence[Any] | Mapping[str, Any]
) -> list[Any] | dict[str, Any]:
    """Return the items of a list or mapping as `convert` does, by the item's type."""
    if isinstance(value, Mapping):
        item_type = _value_type(options)
        return {key: convert(item_type, item) for key, item in value.items()}
    return [
        convert(_item_type(options, index), item) for index, item in enumerate(value)
    ]


def _item_type(options: Sequence[Any], index: int) -> Any:
    """Return the type of an item of a list at a key that accepts these types."""
    for option in options:
        types_of_items = typing.get_args(option)
        if typing.get_origin(option) not in (tuple, list) or not types_of_items:
            continue
        if types_of_items[-1] is Ellipsis or index >= len(types_of_items):
            index = 0
        return types_of_items[index]
    return Any


def _value_type(options: Sequence[Any]) -> Any:
    """Return the type of the values of a mapping at a key that accepts these types."""
    for option in options:
        if typing.get_origin(option) in (dict, Mapping):
            return typing.get_args(option)[1]
    return Any


@functools.cache
def _options(annotation: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the types that a key accepts, and its literal values by their text."""
    options = [bare(member) for member in members(bare(annotation))]
    literals = [option for option in options if typing.get_origin(option) is Literal]
    values = [value for option in literals for value in typing.get_args(option)]
    return options, {str(value): value for value in values}


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type there is."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def bare(annotation: Any) -> Any:
    """Return a type without its `Annotated` metadata."""
    if typing.get_origin(annotation) is Annotated:
        return typing.get_args(annotation)[0]
    return annotation


@functools.cache
def _adapter(cls: type, key: str) -> pydantic.TypeAdapter[Any]:
    field = fields_of(cls)[key]
    converter = pydantic.BeforeValidator(functools.partial(convert, field.annotation))
    annotation: Any = Annotated[(field.annotation, *field.metadata, converter)]
    config = pydantic.ConfigDict(allow_inf_nan=False)
    return pydantic.TypeAdapter(annotation, config=config)


def value_fault(cls: type, key: str, value: Any, name: str) -> str | None:
    """Return the message about a value that a key of a section cannot have, or None.

    Args:
        cls: the section.
        key: its key.
        value: the value.
        name: the full name of the key.
    """
    try:
        _adapter(cls, key).validate_python(value)
    except pydantic.ValidationError as error:
        return describe(error, value, name)
    return None


def json_schema(cls: type, key: str) -> dict[str, Any]:
    """Return the JSON schema of a value at a key."""
    return _adapter(cls, key).json_schema()


_PLAIN = {str, int, float, bool, type(None)}
"""Types of values that are plain as they are."""


def plain(value: Any) -> Any:
    """Return a section, or a value at a key, as plain values for YAML and JSON."""
    if is_section(type(value)):
        values = {}
        for key in fields_of(type(value)):
            item = getattr(value, key)
            values[key] = item if type(item) in _PLAIN else plain(item)
        return values
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def differing_values(section: Any) -> dict[str, Any]:
    """Return the values that differ from their defaults, and all parts' kinds.

    A renamed key of a part of `dpsum` has its earlier name (`former_names`), so that
    the identities of runs stay.
    """
    tag = tag_of([type(section)])
    former_names = getattr(type(section), "former_names", {})
    values: dict[str, Any] = {}
    for key, field in fields_of(type(section)).items():
        value = getattr(section, key)
        default = field.default
        if field.default_factory is not None:
            default = field.get_default(call_default_factory=True)
        if key == tag or field.is_required() or value != default:
            is_inner = is_section(type(value))
            name = former_names.get(key, key)
            values[name] = differing_values(value) if is_inner else plain(value)
    return values


def _unknown_key(
    cls: Model, key: str, parts: Mapping[str, Model] = types.MappingProxyType({})
) -> PydanticCustomError:
    """Return the error about an unknown key of a section.

    Args:
        cls: the section.
        key: the key.
        parts: the other parts that the section's place accepts, by kind.
    """
    kinds = [kind for kind, part in parts.items() if key in fields_of(part)]
    context = {
        "key": str(key),
        "known": nearest_key([cls], str(key)) or "",
        "kinds": ", ".join(kinds),
    }
    return PydanticCustomError("unknown_key", "unknown key {key}", context)


def nearest_key(classes: Sequence[Model], key: str) -> str | None:
    """Return the key of several sections that is most similar to an unknown key."""
    names = [name for cls in classes for name in fields_of(cls)]
    return nearest(key, names, cutoff=0.6)
