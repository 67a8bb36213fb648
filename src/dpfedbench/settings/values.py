"""A value at a key: what it is read as, and what is said of it where it cannot be."""

import contextlib
import functools
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Literal

import pydantic

from dpfedbench.errors import BenchError
from dpfedbench.settings.words import LONGEST_NAME, dotted, expected, members, shown

_SMALL, _LARGE = 0.01, 1000

LONGEST_TEXT = 1000
"""Letters of a text of a configuration: a caption, a source, a path."""

_MOST = 1_000_000
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def check_plain(value: Any, where: str) -> None:
    """Refuse what no file, table or page can take, whatever the key: it would end in a
    traceback there.

    Raises:
        BenchError: a list or group that refers to itself, very many values, or a text
            that is very long or has letters that cannot be printed; by the key.
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
    """All values, at all depths, by their keys; keys are values of the group that they
    are in.
    """
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
    for (
        key,
        item,
    ) in (
        pairs
    ):  # in an order that is not that of the files which were laid over one another
        if isinstance(key, str):
            yield f"a key of {name or 'the configuration'}", key
        yield from _each(item, dotted(name, key), inside)


def as_wanted(annotation: Any, value: Any) -> Any:
    """A value as its key wants it: text that stands for a number as that number, 4000.0
    as 4000, a list as a tuple.

    What cannot be read so is left as it is, and refused later.
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
        # YAML reads off and on as truth values; pydantic takes true for a 1 among
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
                    as_wanted(wanted, item)
                    for wanted, item in zip(items, value, strict=False)
                )
    if isinstance(value, Mapping):
        for option in options:
            inner = typing.get_args(option)
            if isinstance(typing.get_origin(option), type) and len(inner) == 2:
                return {key: as_wanted(inner[1], item) for key, item in value.items()}
    return value


@functools.cache
def _options(annotation: Any) -> tuple[list[Any], list[Any]]:
    """The types that a key takes, and the values that it takes where these are few."""
    options = [bare(member) for member in members(bare(annotation))]
    few = [option for option in options if typing.get_origin(option) is Literal]
    return options, [value for option in few for value in typing.get_args(option)]


def bare(annotation: Any) -> Any:
    """A type without what `Annotated` says of it."""
    return (
        typing.get_args(annotation)[0]
        if typing.get_origin(annotation) is typing.Annotated
        else annotation
    )


def said_of(field: Any, fault: Any, name: str, value: Any, steps: Sequence[Any]) -> str:
    """What to say of a bad value.

    Args:
        field: the key's, as pydantic keeps it.
        fault: pydantic's report.
        name: the key's full name.
        value: what was given.
        steps: from the value to the part of it that is bad.
    """
    wanted, metadata = field.annotation, list(field.metadata)
    for step in steps:
        # Steps into a list or a mapping; pydantic adds names of its own for the members
        # of a union.
        inside = (
            isinstance(value, (list, tuple))
            and isinstance(step, int)
            and step < len(value)
        )
        if inside or (isinstance(value, Mapping) and step in value):
            value, name = value[step], dotted(name, step)
            inner = next(
                filter(
                    None, (typing.get_args(bare(member)) for member in members(wanted))
                ),
                (Any,),
            )
            wanted, metadata = inner[-2] if inner[-1] is ... else inner[-1], []
    if fault["type"] == "finite_number":
        return f"{name} is {shown(value)}: expected a finite number"
    if fault["type"] == "string_too_long" and fault["loc"][-1] != "[key]":
        return (
            f"{name} is {shown(value)}: expected at most {fault['ctx']['max_length']}"
            " letters"
        )
    if fault["type"] == "too_long":
        return (
            f"{name} has {fault['ctx']['actual_length']:,} values: give at most"
            f" {fault['ctx']['max_length']:,}"
        )
    if fault["type"] == "too_short":
        return f"{name} is empty: give at least one"
    if fault["type"] in ("value_error", "assertion_error"):
        return f"{name} is {shown(value)}: {fault['msg'].partition(', ')[2]}"
    if fault["loc"] and fault["loc"][-1] == "[key]":
        called = f"{name} has a part named {shown(fault['input'])}"
        return (
            f"{called}: use lower-case letters, digits and hyphens, at most"
            f" {LONGEST_NAME}"
        )
    if typing.get_origin(wanted) is typing.Annotated:
        wanted, *inner_metadata = typing.get_args(wanted)
        metadata += [
            rule
            for added in inner_metadata
            for rule in getattr(added, "metadata", [added])
        ]
    return (
        f"{name} is {shown(value)}: expected"
        f" {expected(wanted, _near(metadata, value, fault['type']))}"
    )


def _near(metadata: Iterable[Any], value: Any, fault: str) -> Iterator[Any]:
    """The bounds to name: far ones, which nearly nobody comes near, to who goes beyond
    them only.
    """
    for rule in metadata:
        if 0 < getattr(rule, "ge", 0) < _SMALL and not (
            isinstance(value, float) and value > 0
        ):
            yield types.SimpleNamespace(gt=0)
        elif getattr(rule, "le", 0) < _LARGE or fault.startswith("less_than"):
            yield rule


@functools.cache
def _adapter(cls: type[pydantic.BaseModel], key: str) -> pydantic.TypeAdapter[Any]:
    field = cls.model_fields[key]
    annotation: Any = field.annotation
    if field.metadata:
        annotation = Annotated[(annotation, *field.metadata)]
    return pydantic.TypeAdapter(
        annotation, config=pydantic.ConfigDict(strict=True, allow_inf_nan=False)
    )


def bad_value(
    cls: type[pydantic.BaseModel], key: str, value: Any, name: str
) -> str | None:
    """What to say of a value that a key of a section cannot have; None where it can."""
    field = cls.model_fields[key]
    wanted = as_wanted(field.annotation, value)
    try:
        _adapter(cls, key).validate_python(wanted)
    except pydantic.ValidationError as error:
        fault = error.errors(include_url=False)[0]
        return said_of(
            field,
            fault,
            name,
            value if isinstance(value, bool) else wanted,
            fault["loc"],
        )
    return None


def json_schema(cls: type[pydantic.BaseModel], key: str) -> dict[str, Any]:
    """The JSON schema of a value at a key."""
    return _adapter(cls, key).json_schema()
