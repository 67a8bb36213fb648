"""Settings that check themselves, and parts: settings with a behaviour, one file each,
found by place.

A section of a configuration is a `Settings` class, whose fields are its keys. A `Part`
is one of several that can stand at the same place: its `kind` says which. All parts of
a kind of thing (all clipping rules) are a family: a base class without `kind`, whose
`place` names the package that holds the family's modules. Adding a module there adds a
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
    """A section of a configuration: cannot be changed, and cannot exist with an unknown
    key or a bad value.

    Text is read as the number, truth value or null that it stands for, where the key
    wants one: `--config` and YAML (1e-6) hand over text. 1 and 1.0 are one value, and a
    truth value is no number.

    Raises:
        BenchError: an unknown or missing key, or a value out of bounds.
    """

    model_config = STRICT

    short: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Texts that may stand in place of a section, and what each stands for."""

    def __init__(self, **values: Any) -> None:
        _check_keys(type(self), values, "")
        _fill(self, values, "")

    # Tells pydantic that nothing is lost when it makes an instance without calling
    # this.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a key that has the name of something that its bases have and that is
        no key.
        """
        super().__init_subclass__(**options)
        refuse_shadowing(cls)

    @classmethod
    def read(cls, values: Any, where: str = "") -> Self:
        """Make one from plain values.

        Args:
            values: a mapping; at the place of a part, text stands for {kind: text}.
            where: the dotted key at which the values stand, for messages.

        Raises:
            BenchError: the first fault; unknown keys of a section before others.
        """
        return _read(cls, values, where)  # type: ignore[no-any-return]

    def plain(self) -> dict[str, Any]:
        """Plain values of all keys, as config.yaml holds them; `read` makes an equal
        instance of them.
        """
        values: dict[str, Any] = plain(self)
        return values

    def identity(self) -> dict[str, Any]:
        """Return the plain values that differ from their defaults, and the kind of each
        part.
        """
        return _identity(self)

    def replace(self, **changes: Any) -> Self:
        """A copy with other values at some keys, checked like any.

        Raises:
            BenchError: a value is out of bounds.
        """
        return type(self)(
            **{key: getattr(self, key) for key in type(self).model_fields} | changes
        )


class Section(Settings):
    """A section of a run, which may say something of the whole run."""

    def check(self, run: Never) -> None:
        """Check what has to hold between this section and the rest of the run.

        This class knows no run, so that its parameter is of no type. A section that
        overrides it says which: `Run`.

        Raises:
            BenchError: it does not hold; says which keys, and how to mend them.
        """

    def notices(self, run: Never) -> tuple[str, ...]:
        """Return the notices that a private run's results carry because of this
        section.
        """
        return ()

    @property
    def unaccounted(self) -> tuple[str, ...]:
        """Why what this section has computed from private data, before training, is a
        release without an event.
        """
        return ()

    def breaches(self, run: Never) -> tuple[Breach, ...]:
        """Return what this section does that no account of the run covers.

        A run is refused because of it, unless it repeats a paper's released code
        (`Run.reading`).
        """
        return ()


class Part(Section):
    """One of several that can stand at a place of a configuration.

    A family's base names the package of the family's modules as `place`. A part has a
    field `kind`, for instance `kind: Literal["constant"] = "constant"`; a family may
    call that key otherwise (`tag`). `implied_by` is a key that says the kind where
    `kind` is not given, and `default_kind` the kind where nothing does.
    """

    package: ClassVar[str] = ""
    tag: ClassVar[str] = "kind"
    implied_by: ClassVar[str] = ""
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
    """Return the plain values that differ from their defaults, and the kind of each
    part.
    """
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
        # Text is null only where it cannot be meant as text.
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
    value = spelled_out(value, shape.tag)
    if cls is None or not isinstance(value, Mapping):
        raise BenchError(unknown_kind(where, value, shape.tag, parts))
    return _read(cls, {shape.tag: kind_of(cls)} | dict(value), where)


def _fill(instance: Any, values: Mapping[str, Any], where: str) -> Any:
    """Give a bare instance its values; the section's own checks run too.

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
