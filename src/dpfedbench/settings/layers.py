"""Merging of overlays of settings, before the result is read."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpfedbench import plugins
from dpfedbench.errors import BenchError
from dpfedbench.settings.families import (
    chosen,
    kind_of,
    shapes,
    spelled_out,
    tag_of,
    unknown_key,
)
from dpfedbench.settings.messages import dotted, no_group, unknown_kind
from dpfedbench.settings.part import Settings
from dpfedbench.settings.values import value_fault

Structure = type[Settings] | Sequence[type[Settings]]
"""Section that overlays are for, or several sections whose keys are accepted together
(those of all methods).
"""

Classes = tuple[type[Settings], ...]


def merge(structure: Structure, *layers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge later overlays over earlier ones.

    Another `kind` replaces a part, but the values of keys that the new kind also has
    stay: "the same threshold, but constant". Other sections are merged key by key. Any
    other value replaces the earlier one.

    Args:
        structure: the section of the overlays, which defines the keys of each kind. Its
            rules are not checked here.
        layers: the overlays; None is an empty one.
    """
    merged = dict[str, Any]()
    classes = _classes(structure)
    for layer in layers:
        for key, value in (layer or {}).items():
            inner = _standing_at(classes, key)
            merged[key] = _over(inner, merged.get(key), _spelled_out(inner, value))
    return merged


def _classes(structure: Structure) -> Classes:
    return (structure,) if isinstance(structure, type) else tuple(structure)


def _over(inner: Sequence[type[Settings]], lower: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return copy.deepcopy(value)
    lower = lower if isinstance(lower, Mapping) else {}
    cls = _of_kind(inner, value)
    if cls is not None and _of_kind(inner, lower) not in (None, cls):
        lower = {key: item for key, item in lower.items() if key in shapes(cls)}
    return merge(inner, lower, value)


def _spelled_out(inner: Sequence[type[Settings]], value: Any) -> Any:
    """Return the value at a key, with its kind where text or a key implies one."""
    if not _have_kinds(inner):
        return value
    tag = tag_of(inner)
    value = spelled_out(value, tag)
    if isinstance(value, Mapping) and tag not in value:
        for cls in inner:
            implied = getattr(cls, "implied_by", "")
            if implied and implied in value:
                return {tag: kind_of(cls), **value}
    return value


def _of_kind(
    classes: Sequence[type[Settings]], value: Mapping[str, Any]
) -> type[Settings] | None:
    """Return the part among these classes that an overlay's kind names, or None."""
    kind = value.get(tag_of(classes))
    return next(
        (cls for cls in classes if kind is not None and kind_of(cls) == kind), None
    )


def check(
    structure: Structure, overlay: Any, where: str, *, taken: bool = False
) -> None:
    """Refuse keys and values of an overlay that none of its sections can have.

    Args:
        structure: the section, or several sections that share the overlay: a key of any
            of them is accepted.
        overlay: the overlay.
        where: its dotted key, for messages.
        taken: whether kinds of the sections' families that these sections do not accept
            are refused too.

    Raises:
        BenchError: unknown keys before other faults; each with its dotted key.
    """
    faults = _faults(_classes(structure), overlay, where, taken=taken)
    for fault in sorted(faults, key=lambda fault: not fault.startswith("unknown key")):
        raise BenchError(fault)


def _faults(
    classes: Sequence[type[Settings]], overlay: Any, where: str, *, taken: bool
) -> Iterator[str]:
    """Yield a message for each fault of an overlay, see `check`."""
    if not isinstance(overlay, Mapping):
        yield no_group(where, overlay)
        return
    for key, value in overlay.items():
        name = dotted(where, key)
        having = tuple(cls for cls in classes if key in shapes(cls))
        inner = _standing_at(having, key, taken=taken)
        if not having:
            yield unknown_key(classes, str(key), where)
        elif not inner:
            faults = [value_fault(cls, key, value, name) for cls in having]
            if key != tag_of(classes) and None not in faults:
                yield str(faults[0])
        else:
            nullable = any(shapes(cls)[key].nullable for cls in having)
            yield from _section_faults(inner, value, name, nullable, taken)


def _section_faults(
    inner: Sequence[type[Settings]], value: Any, name: str, nullable: bool, taken: bool
) -> Iterator[str]:
    """Yield a message for each fault of the value of a section or part."""
    kinds = [kind for kind in map(kind_of, inner) if kind]
    tag = tag_of(inner)
    value = _spelled_out(inner, value)
    is_null = value is None or value == "null"
    if is_null and nullable:
        return
    has_kind = isinstance(value, Mapping) and tag in value
    if kinds and (is_null or (has_kind and not _of_kind(inner, value))):
        yield unknown_kind(name, value, tag, kinds)
    if not is_null or not kinds:
        yield from _faults(inner, value, name, taken=taken)


def lay(cls: type[Settings], *general: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values that overlays for several runs give to one method.

    Each overlay is merged over the ones before. Sections, kinds and keys that the
    method does not have are left out. `check` has validated the overlays before.
    """
    values: dict[str, Any] = {}
    for layer in general:
        _lay([cls], values, layer or {}, keep=False)
    return values


def resolve(
    cls: type[Settings], general: Mapping[str, Any], cell: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of one run: its own overlay `cell` over the result of `lay`.

    All values of the run's own overlay stay, so that `read` refuses those that do not
    fit. Other values that do not fit are removed.
    """
    values = copy.deepcopy(dict(general))
    _lay([cls], values, cell, keep=True)
    _name_kinds(cls, values)
    _settle([cls], values, cell)
    return values


def _name_kinds(cls: type[Settings], values: dict[str, Any]) -> None:
    """Set the kind of each part without a known kind to the method's default."""
    for key, value in values.items():
        shape = shapes(cls).get(key)
        if shape is not None and shape.sections and isinstance(value, dict):
            inner = chosen(shape, value)
            if inner is not None and kind_of(inner):
                value.setdefault(shape.tag, kind_of(inner))
            if inner is not None:
                _name_kinds(inner, value)


def _lay(
    classes: Sequence[type[Settings]],
    below: dict[str, Any],
    layer: Mapping[str, Any],
    *,
    keep: bool,
) -> None:
    """Merge an overlay into the values, key by key, whatever the kinds are.

    `_settle` removes keys that the final kinds lack.
    """
    for key, overlay in layer.items():
        having = tuple(cls for cls in classes if key in shapes(cls))
        inner = _standing_at(having, key, taken=True)
        value = _spelled_out(inner, overlay)
        if not having:
            if keep:
                below[key] = copy.deepcopy(value)
        elif inner and (value is None or value == "null"):
            if keep or any(shapes(cls)[key].nullable for cls in having):
                below[key] = None
        elif inner and isinstance(value, Mapping):
            if not isinstance(below.get(key), dict):
                below[key] = {}
            if not keep and _have_kinds(inner) and not _of_kind(inner, value):
                value = {
                    name: item for name, item in value.items() if name != tag_of(inner)
                }
            _lay(inner, below[key], value, keep=keep)
        else:
            below[key] = copy.deepcopy(value)


def _settle(
    classes: Sequence[type[Settings]], values: dict[str, Any], cell: Any
) -> None:
    """Remove keys that the selected part does not define.

    Keys that the run's own overlay sets stay.
    """
    overlay = cell if isinstance(cell, Mapping) else {}
    for key, value in values.items():
        inner = _standing_at(tuple(classes), key, taken=True)
        if not inner or not isinstance(value, dict):
            continue
        part_overlay = _spelled_out(inner, overlay.get(key))
        taken = [part] if (part := _of_kind(inner, value)) else inner
        for name in list(value):
            if not any(name in shapes(cls) for cls in taken) and not (
                isinstance(part_overlay, Mapping) and name in part_overlay
            ):
                del value[name]
        _settle(taken, value, part_overlay)


@plugins.cached
def _standing_at(
    classes: Classes, key: str, *, taken: bool = False
) -> list[type[Settings]]:
    """Return the classes that a key of these sections accepts, each part separately.

    The list is empty for a plain value and for an unknown key. It has all parts of the
    accepted families or, with `taken`, only the parts that one of the sections accepts.
    """
    standing: dict[type[Settings], None] = {}
    for cls in classes:
        if shape := shapes(cls).get(key):
            standing |= dict.fromkeys(
                (shape.parts if taken else shape.families).values() or shape.sections
            )
    return list(standing)


def _have_kinds(classes: Sequence[type[Settings]]) -> bool:
    """Return whether any of these classes is a part with a kind."""
    return any(kind_of(cls) for cls in classes)


def set_key(overlay: Mapping[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    """Return a copy of `overlay` with a value at a dotted key, e.g.
    "clipping.percentile".
    """
    first, _, rest = dotted.partition(".")
    copied = copy.deepcopy(dict(overlay))
    if rest:
        inner = copied.get(first)
        inner = {"kind": inner} if isinstance(inner, str) else inner
        copied[first] = set_key(
            inner if isinstance(inner, Mapping) else {}, rest, value
        )
    else:
        copied[first] = copy.deepcopy(value)
    return copied


def leaves(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as {dotted key: value}."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= leaves(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat
