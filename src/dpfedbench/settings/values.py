"""Values at keys: their conversion to the key's type, and messages about invalid
values.
"""

import contextlib
import functools
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Literal

import pydantic

from dpfedbench.errors import BenchError
from dpfedbench.settings.library import fields_of
from dpfedbench.settings.messages import describe, dotted, shown

LONGEST_TEXT = 1000
"""Largest number of letters of a configured text: a caption, a source, a path."""

_MOST = 1_000_000
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def check_plain(value: Any, where: str) -> None:
    """Refuse values that no file, table or page can hold, whatever the key.

    Such a value would end in a traceback later.

    Raises:
        BenchError: a list or group that refers to itself, very many values, or a text
            that is very long or has unprintable letters; names the key.
    """
    for number, (name, leaf) in enumerate(_each(value, where, ())):
        if number > _MOST:
            raise BenchError(
                f"{where or 'the configuration'} has more than {_MOST:,} values: make"
                " it smaller"
            )
        if not isinstance(leaf, str):
            continue
        if letter := _UNPRINTABLE.search(leaf):
            raise BenchError(
                f"{name} has the letter {letter[0]!a}, which cannot be printed: take"
                " it out"
            )
        if len(leaf) > LONGEST_TEXT:
            most = f"at most {LONGEST_TEXT:,} letters"
            raise BenchError(
                f"{name} is {shown(leaf)}: expected {most}, it has {len(leaf):,}"
            )


def _each(value: Any, name: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """Yield all values and keys at all depths, with their names."""
    if not isinstance(value, (Mapping, list, tuple)):
        yield name, value
        return
    if id(value) in above:
        raise BenchError(f"{name} refers to itself: write out what it holds")
    inside = (*above, id(value))
    pairs = (
        sorted(value.items(), key=lambda pair: str(pair[0]))
        if isinstance(value, Mapping)
        else enumerate(value)
    )
    # Keys are sorted, so that the first fault does not depend on the order of files.
    for key, item in pairs:
        if isinstance(key, str):
            yield f"a key of {name or 'the configuration'}", key
        yield from _each(item, dotted(name, key), inside)


def convert(annotation: Any, value: Any) -> Any:
    """Convert a value to the type of its key.

    Text becomes the number that it stands for, 4000.0 becomes 4000, a list becomes a
    tuple. A value that cannot be converted is returned unchanged, for pydantic to
    refuse.
    """
    options, literal = _options(annotation)
    if Any in options:
        return value
    if isinstance(value, str) and str not in options and value not in literal:
        with contextlib.suppress(ValueError):
            read = json.loads(value.lower())
            value = value if isinstance(read, (list, dict)) else read
    elif value == "null" and NoneType in options:
        return None
    if isinstance(value, bool):
        # YAML reads off and on as truth values. Pydantic accepts true as a 1 among
        # literal values.
        word = "on" if value else "off"
        if word in literal:
            return word
        return (
            str(value)
            if literal
            and value
            not in [allowed for allowed in literal if isinstance(allowed, bool)]
            else value
        )
    if isinstance(value, float) and float not in options and value.is_integer():
        return int(value)
    if isinstance(value, (list, tuple)):
        for option in options:
            if typing.get_origin(option) is tuple:
                inner = typing.get_args(option)
                items = (
                    [inner[0]] * len(value)
                    if inner[-1] is ...
                    else [*inner, *[Any] * len(value)]
                )
                return tuple(
                    convert(item_type, item)
                    for item_type, item in zip(items, value, strict=False)
                )
    if isinstance(value, Mapping):
        for option in options:
            inner = typing.get_args(option)
            if isinstance(typing.get_origin(option), type) and len(inner) == 2:
                return {key: convert(inner[1], item) for key, item in value.items()}
    return value


@functools.cache
def _options(annotation: Any) -> tuple[list[Any], list[Any]]:
    """Return the types that a key accepts, and its literal values, if it has any."""
    options = [bare(member) for member in members(bare(annotation))]
    literals = [option for option in options if typing.get_origin(option) is Literal]
    return options, [value for option in literals for value in typing.get_args(option)]


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
    annotation: Any = field.annotation
    if field.metadata:
        annotation = Annotated[(annotation, *field.metadata)]
    return pydantic.TypeAdapter(
        annotation, config=pydantic.ConfigDict(strict=True, allow_inf_nan=False)
    )


def value_fault(cls: type, key: str, value: Any, name: str) -> str | None:
    """Return the message about a value that a key of a section cannot have, or None.

    Args:
        cls: the section.
        key: its key.
        value: the value.
        name: the full name of the key.
    """
    value = convert(fields_of(cls)[key].annotation, value)
    try:
        _adapter(cls, key).validate_python(value)
    except pydantic.ValidationError as error:
        return describe(error, value, name)
    return None


def json_schema(cls: type, key: str) -> dict[str, Any]:
    """Return the JSON schema of a value at a key."""
    return _adapter(cls, key).json_schema()
