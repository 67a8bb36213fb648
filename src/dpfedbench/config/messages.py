"""One-line messages about the keys and values of a configuration."""

import contextlib
import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pydantic

LONGEST_NAME = 64
"""Largest number of letters in a name that becomes a file or a folder."""

LOWER_CASE = "^[a-z0-9]+(-[a-z0-9]+)*$"
"""Pattern of names: lower-case letters, digits and hyphens."""


def dotted(*keys: object) -> str:
    """Return the full name of a key, e.g. "clipping.threshold", without empty parts."""
    return ".".join([text for key in keys if (text := str(key))])


def nearest(name: str, valid: Iterable[str], cutoff: float = 0.0) -> str | None:
    """Return the valid name that is most similar to `name`; None without a similar one.

    Args:
        name: the name.
        valid: the valid names.
        cutoff: the least similarity, from 0 to 1.
    """
    names = list(map(str, valid))
    matches = difflib.get_close_matches(str(name), names, n=1, cutoff=cutoff)
    return next(iter(matches), None)


def shown(value: Any) -> str:
    """Return a value as text for a message, shortened if it is long."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def describe(error: pydantic.ValidationError, value: Any, where: str) -> str:
    """Return the first fault of a validation error in one line.

    An unknown key comes first. The line has the full name of the key, its value, and
    pydantic's message.

    Args:
        error: validation error of a section, or of the value at one key.
        value: the validated value.
        where: its dotted key; "" for the whole configuration.
    """
    faults = error.errors(include_url=False)
    first = next(
        (fault for fault in faults if fault["type"] == "unknown_key"), faults[0]
    )
    name = _name(first, value, where)
    context = first.get("ctx", {})
    match first["type"]:
        case "missing":
            return f"{dotted(name, first['loc'][-1])} is missing"
        case "unknown_key":
            return unknown_key(name, **context)
        case "unknown_kind":
            return unknown_kind(name, first["input"], **context)
        case "no_group":
            return no_group(name or "the configuration", first["input"])
    reason = _reason(first)
    if isinstance(first["input"], Mapping) and not first["loc"]:
        return f"{name or 'the configuration'}: {reason}"
    return f"{name} is {shown(first['input'])}: {reason}"


def _reason(fault: Any) -> str:
    """Return pydantic's message of a fault, for the middle of a sentence."""
    text: str = fault["msg"].removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _name(fault: Any, value: Any, where: str) -> str:
    """Return the dotted key of a fault, without the names of a union's members."""
    steps: list[Any] = []
    for step in fault["loc"]:
        with contextlib.suppress(KeyError, IndexError, TypeError):
            value = value[step]
            steps.append(step)
    return dotted(where, *steps)


def unknown_key(where: str, key: str, known: str | None, kinds: str = "") -> str:
    """Return the message about a key that a section does not have.

    Args:
        where: the dotted key of the section.
        key: the unknown key.
        known: the most similar key that it has, if any.
        kinds: other kinds of the part that have the key.
    """
    message = f"unknown key {dotted(where, key)}"
    if kinds:
        return f"{message}: kinds with this key: {kinds}"
    if known:
        return f"{message}: the nearest known key is {dotted(where, known)}"
    return message


def other_name(where: str, key: str, name: str, kind: str) -> str:
    """Return the message about a key that has another name in a kind of part.

    Args:
        where: the dotted key of the part.
        key: the key that the values have.
        name: the name of the key in this kind.
        kind: the kind.
    """
    return (
        f"{dotted(where, key)}: {kind} has {name} in its place; a section for several"
        f" methods states both, {key} and {name}"
    )


def unknown_kind(where: str, value: Any, tag: str, kinds: str) -> str:
    """Return the message about a part whose kind a key does not accept.

    Args:
        where: the dotted key.
        value: the value at the key.
        tag: the key that holds the kind.
        kinds: the accepted kinds.
    """
    if isinstance(value, Mapping):
        where = dotted(where, tag)
        value = value.get(tag)
    return f"{where} is {shown(value)}: expected one of {kinds}"


def no_group(where: str, value: Any) -> str:
    """Return the message about a value where a group of keys is expected."""
    return f"{where} is {shown(value)}: expected a group of keys"
