"""Overlays of settings, laid over one another before they are read."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from dpfedbench.settings.part import Settings, Shape, kind_of, shapes, spelled_out

Structure = type[Settings] | Sequence[type[Settings]]
"""The section that overlays are for, or several whose keys are taken together (those of all methods)."""


def merge(structure: Structure, *layers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Lay later overlays over earlier ones.

    Another `kind` replaces a part, but keys that the new kind has too keep their values: "the same threshold, but
    constant". Other sections are laid over one another key by key; any other value replaces what was there.

    Args:
        structure: what the overlays are for; it says which keys a kind has. Its rules are not checked here.
        layers: the overlays; None is an empty one.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in (layer or {}).items():
            inner = inner_structure(structure, key)
            merged[key] = _over(inner, merged.get(key), spelled_out(value) if has_kinds(inner) else value)
    return merged


def _over(inner: Sequence[type[Settings]], below: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return copy.deepcopy(value)
    below = below if isinstance(below, Mapping) else {}
    cls = asked_for(inner, value)
    if cls is not None and asked_for(inner, below) not in (None, cls):
        below = {key: item for key, item in below.items() if key in shapes(cls)}
    return merge(inner, below, value)


def asked_for(classes: Sequence[type[Settings]], value: Mapping[str, Any]) -> type[Settings] | None:
    """The part, of these classes, whose kind an overlay says; None where it says none."""
    for cls in classes:
        implied = getattr(cls, "implied_by", "")
        if kind_of(cls) and ((implied and implied in value) or value.get("kind") == kind_of(cls)):
            return cls
    return None


def has_kinds(classes: Sequence[type[Settings]]) -> bool:
    """Whether one of several parts stands there."""
    return any(kind_of(cls) for cls in classes)


def inner_structure(structure: Structure, key: str) -> list[type[Settings]]:
    """The classes that can stand at a key; none where it is a value, or is not known."""
    classes = [structure] if isinstance(structure, type) else structure
    found: dict[type[Settings], None] = {}
    for cls in classes:
        shape = shapes(cls).get(key)
        if shape is not None:
            found |= dict.fromkeys(classes_at(shape))
    return list(found)


def classes_at(shape: Shape) -> list[type[Settings]]:
    """The classes that can stand at a key, each part of a family by itself."""
    return [*shape.families.values()] or [*shape.sections]


def set_key(overlay: Mapping[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    """A copy of `overlay` with the value at a dotted key, e.g. "clipping.percentile"."""
    first, _, rest = dotted.partition(".")
    copied = copy.deepcopy(dict(overlay))
    if rest:
        below = copied.get(first)
        below = {"kind": below} if isinstance(below, str) else below
        copied[first] = set_key(below if isinstance(below, Mapping) else {}, rest, value)
    else:
        copied[first] = copy.deepcopy(value)
    return copied


def leaves(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as {dotted key: value}."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            found |= leaves(item, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = item
    return found
