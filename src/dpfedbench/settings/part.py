"""Base classes of settings: sections that validate themselves, and parts, which are
sections with a behaviour.

A section of a configuration is a `Settings` class, whose fields are its keys. A `Part`
is one of several alternatives at the same key; its `kind` selects it. All alternatives
(all clipping rules, for instance) are a family: a base class without `kind`, whose
`package` names the package that holds the family's modules. A new module there adds a
part.

Every fault is a `BenchError` of one line with the full name of the key.
"""

import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Never, Self

import pydantic

from dpfedbench.errors import BenchError
from dpfedbench.settings.breach import Breach
from dpfedbench.settings.families import (
    Shape,
    chosen,
    is_section,
    label,
    spelled_out,
    tag_of,
    unknown_key,
)
from dpfedbench.settings.families import kind_of as kind_of
from dpfedbench.settings.families import kinds_of as kinds_of
from dpfedbench.settings.families import shapes as shapes
from dpfedbench.settings.keys import refuse_shadowing
from dpfedbench.settings.keys import setting as setting
from dpfedbench.settings.library import STRICT, family_of, fields_of, schema_of
from dpfedbench.settings.messages import describe, dotted, no_group, unknown_kind
from dpfedbench.settings.values import convert, members


class Settings(pydantic.BaseModel):
    """Immutable section of a configuration, without unknown keys and invalid values.

    Text is read as a number, truth value or null where the key expects one, because
    `--config` and YAML (1e-6) pass text. 1 and 1.0 are one value, and a truth value is
    not a number.

    Raises:
        BenchError: an unknown or missing key, or a value out of bounds.
    """

    model_config = STRICT

    short: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Texts that abbreviate a section, each with the values that it stands for."""

    def __init__(self, **values: Any) -> None:
        _check_keys(type(self), values, "")
        _fill(self, values, "")

    # Tells pydantic that it may create an instance without calling this method.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a key with the name of an attribute of its bases that is not a key."""
        super().__init_subclass__(**options)
        refuse_shadowing(cls)

    @classmethod
    def read(cls, values: Any, where: str = "") -> Self:
        """Create an instance from plain values.

        Args:
            values: a mapping; for a part, text stands for {kind: text}.
            where: the dotted key of the values, for messages.

        Raises:
            BenchError: the first fault; unknown keys of a section before others.
        """
        return _read(cls, values, where)  # type: ignore[no-any-return]

    def plain(self) -> dict[str, Any]:
        """Return the plain values of all keys, as in config.yaml.

        `read` creates an equal instance from them.
        """
        values: dict[str, Any] = plain(self)
        return values

    def identity(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, and all parts' kinds."""
        return _identity(self)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values at some keys, which are validated.

        Raises:
            BenchError: a value is out of bounds.
        """
        return type(self)(
            **{key: getattr(self, key) for key in type(self).model_fields} | changes
        )


class Section(Settings):
    """Section of a run, which may check the whole run."""

    def check(self, run: Never) -> None:
        """Check the rules between this section and the rest of the run.

        This class does not know the class of runs, so that the parameter has no type
        here. An override declares the type `Method`.

        Raises:
            BenchError: a rule is violated; names the keys and the remedy.
        """

    def notices(self, run: Never) -> tuple[str, ...]:
        """Return the notices that this section adds to a private run's results."""
        return ()

    @property
    def unaccounted(self) -> tuple[str, ...]:
        """Reasons why a value that this section computed from private data before
        training is a release without an accounting event.
        """
        return ()

    def breaches(self, run: Never) -> tuple[Breach, ...]:
        """Return the steps of this section that no account of the run covers.

        A run with a breach is refused, unless it repeats a paper's released code
        (`Method.reading`).
        """
        return ()


class Part(Section):
    """One of several alternatives at a key of a configuration.

    A family's base names the package of the family's modules as `package`. A part has a
    field `kind`, for instance `kind: Literal["constant"] = "constant"`; a family may
    name that key otherwise (`tag`). `default_kind` is the kind where it is missing.
    """

    package: ClassVar[str] = ""
    tag: ClassVar[str] = "kind"
    default_kind: ClassVar[str] = ""
    if typing.TYPE_CHECKING:
        kind: str


def plain(value: Any) -> Any:
    """Return a section, or a value at a key, as plain values for YAML and JSON."""
    if is_section(type(value)):
        return {key: plain(getattr(value, key)) for key in fields_of(type(value))}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _identity(section: Any) -> dict[str, Any]:
    """Return the values that differ from their defaults, and all parts' kinds."""
    tag = tag_of([type(section)])
    values: dict[str, Any] = {}
    for key, field in fields_of(type(section)).items():
        value = getattr(section, key)
        is_default = not field.is_required() and value == field.get_default(
            call_default_factory=True
        )
        if key == tag or not is_default:
            is_inner = is_section(type(value))
            values[key] = _identity(value) if is_inner else plain(value)
    return values


def _check_keys(cls: type[Settings], values: Mapping[str, Any], where: str) -> None:
    """Refuse keys that a section does not have."""
    for key in values:
        if key not in fields_of(cls):
            raise BenchError(unknown_key([cls], str(key), where))


def _read(cls: Any, values: Any, where: str) -> Any:
    if isinstance(values, cls):
        return values
    if isinstance(values, str):
        values = getattr(cls, "short", {}).get(values, values)
    if not isinstance(values, Mapping):
        raise BenchError(no_group(where or "the configuration", values))
    _check_keys(cls, values, where)
    keys = shapes(cls)
    converted = {
        key: _read_at(keys[key], value, dotted(where, key))
        for key, value in values.items()
        if key in keys
    }
    if family_of(cls) is not None:
        return _build(cls, converted, where)
    return _fill(cls.__new__(cls), converted, where)


def _build(cls: Any, values: Mapping[str, Any], where: str) -> Any:
    """Return an instance of a dataclass of `dpsum`, given checked values of its keys."""
    checked = _fill(schema_of(cls).__new__(schema_of(cls)), values, where)
    return cls(
        **{key: getattr(checked, key) for key in fields_of(cls) if key != "kind"}
    )


def _read_at(shape: Shape, value: Any, where: str) -> Any:
    if shape.nullable and (
        value is None or (isinstance(value, str) and value.lower() == "null")
    ):
        # "null" is read as null only at keys that accept no text.
        return None if value is None or str not in members(shape.annotation) else value
    if shape.sections:
        return _read_part(shape, value, where)
    if shape.item is not None and shape.named and isinstance(value, (list, tuple)):
        raise BenchError(no_group(where, value))
    if shape.item is not None and isinstance(value, Mapping):
        return {
            key: _read_at(shape.item, item, dotted(where, key))
            for key, item in value.items()
        }
    if (
        shape.item is not None
        and shape.item.sections
        and isinstance(value, (list, tuple))
    ):
        return tuple(
            _read_at(shape.item, item, dotted(where, index))
            for index, item in enumerate(value)
        )
    return value


def _read_part(shape: Shape, value: Any, where: str) -> Any:
    """Read the section or part at a key."""
    cls = chosen(shape, value)
    parts = shape.parts
    if not parts and cls is not None:
        return _read(cls, value, where)
    if is_section(type(value)):
        if cls in parts.values():
            return value
        value = label(type(value))
    value = spelled_out(value)
    if cls is None or not isinstance(value, Mapping):
        raise BenchError(unknown_kind(where, value, shape.tag, parts))
    return _read(cls, {shape.tag: kind_of(cls)} | dict(value), where)


def _fill(instance: Any, values: Mapping[str, Any], where: str) -> Any:
    """Set the values of a bare instance, and run the section's own checks.

    Raises:
        BenchError: pydantic's first fault, in one line.
    """
    cls = type(instance)
    fields = cls.model_fields
    converted = {
        key: convert(fields[key].annotation, value) for key, value in values.items()
    }
    try:
        cls.__pydantic_validator__.validate_python(converted, self_instance=instance)
    except pydantic.ValidationError as error:
        raise BenchError(describe(error, converted, where)) from None
    return instance
