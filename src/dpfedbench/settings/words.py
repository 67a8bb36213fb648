"""What is said of a bad key or value, in one line."""

import difflib
import json
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any

LONGEST_NAME = 64
"""Letters of a name that becomes a file or a folder."""

LOWER_CASE = "^[a-z0-9]+(-[a-z0-9]+)*$"
"""The pattern of names: lower-case letters, digits and hyphens."""


def dotted(*keys: object) -> str:
    """The full name of a key, e.g. "clipping.threshold"; empty parts are left out."""
    return ".".join([text for key in keys if (text := str(key))])


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that looks most like `name`; None where there is none."""
    return _closest(name, valid, 0.0)


def looks_like(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that `name` is probably a slip for; None where none comes near."""
    return _closest(name, valid, 0.6)


def _closest(name: str, valid: Iterable[str], cutoff: float) -> str | None:
    return next(
        iter(
            difflib.get_close_matches(
                str(name), list(map(str, valid)), n=1, cutoff=cutoff
            )
        ),
        None,
    )


def shown(value: Any) -> str:
    """A value as it stands in a message."""
    if isinstance(value, float) and (
        value != value or value in (float("inf"), float("-inf"))
    ):
        return str(value)
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def unknown_kind(where: str, kind: Any, parts: Collection[str]) -> str:
    """What to say of a kind that no part has."""
    return (
        f"{where} is {shown(kind)}: expected one of {', '.join(parts)}, the nearest is"
        f" {nearest(str(kind), parts)}"
    )


def members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type there is."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def expected(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a key wants, e.g. "a number above 0 or null".

    Args:
        annotation: its type.
        metadata: its bounds, as pydantic keeps them.
    """
    text = " or ".join(
        map(
            _named,
            sorted(members(annotation), key=lambda member: member is types.NoneType),
        )
    )
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    limits = []
    for rule in metadata:
        limits += [
            f"{word} {_bound(getattr(rule, key))}"
            for key, word in words.items()
            if hasattr(rule, key)
        ]
        pattern = getattr(rule, "pattern", None)
        if pattern:
            like = (
                "of lower-case letters, digits and hyphens"
                if pattern == LOWER_CASE
                else f"like {pattern}"
            )
            text = text.replace("text", f"text {like}", 1)
    if limits:
        text = text.replace("number", "number " + " and ".join(limits), 1)
    return text


def _bound(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _named(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    origin = typing.get_origin(annotation) or annotation
    if origin is typing.Literal:
        return "one of " + ", ".join(
            str(value) for value in typing.get_args(annotation)
        )
    names: Mapping[Any, str] = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        types.NoneType: "null",
        list: "a list",
        tuple: "a list",
        frozenset: "a list",
    }
    return names.get(origin, "a group of keys")


def no_group(where: str, value: Any) -> str:
    """The fault of a value that stands where keys with values have to."""
    mend = (
        ", each written NAME: VALUE, and not a list of them"
        if isinstance(value, (list, tuple))
        else ""
    )
    return f"{where} is {shown(value)}: expected a group of keys{mend}"
