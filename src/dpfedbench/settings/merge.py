"""Merging of the overlays of a run.

`merge` lays overlays over one another, key by key, whatever they are for. `fit` then
leaves out the keys that a method and its selected parts do not have. Overlays are
checked before (`check`), so that a misspelt key is not left out without a word.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.settings.kinds import Model, kind_of, tag_of, with_kind
from dpfedbench.settings.messages import dotted, no_group, unknown_key, unknown_kind
from dpfedbench.settings.schema import Key, keys_of, nearest_key, value_fault

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""Overlay without a key."""


def merge(*overlays: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge later overlays over earlier ones, key by key.

    Text beside a group of keys is the group's kind: `poisson` over `{kind: one-pass,
    rounds: 20}` is `{kind: poisson, rounds: 20}`. None is an empty overlay.
    """
    merged: dict[str, Any] = {}
    for overlay in overlays:
        for key, value in (overlay or {}).items():
            lower = merged.get(key)
            if isinstance(lower, Mapping) or isinstance(value, Mapping):
                groups = [with_kind(lower), with_kind(value)]
                if all(isinstance(group, Mapping) for group in groups):
                    value = merge(*groups)
            merged[key] = copy.deepcopy(value)
    return merged


def fit(
    cls: Model, values: Mapping[str, Any], own: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """Return the values without the keys that a method and its parts do not have.

    A kind that the method does not accept is left out too, so that the method's own
    default remains.

    Args:
        cls: the method, or a section of it.
        values: merged overlays for several methods.
        own: the overlay of the run alone. Its keys stay, so that `read` refuses those
            that do not fit.
    """
    keys = keys_of(cls)
    fitted: dict[str, Any] = {}
    for name, value in values.items():
        group = with_kind(value)
        if name not in keys:
            if name in own:
                fitted[name] = value
        elif not keys[name].bases:
            fitted[name] = value
        elif isinstance(group, Mapping):
            fitted[name] = _fit_section(keys[name], group, with_kind(own.get(name)))
        elif name in own or keys[name].nullable:
            fitted[name] = value
    return fitted


def _fit_section(key: Key, values: Mapping[str, Any], own: Any) -> dict[str, Any]:
    """Return the values of a section or part without the keys that it does not have."""
    own = own if isinstance(own, Mapping) else NOTHING
    tag = key.tag
    if tag in values and tag not in own and str(values[tag]) not in key.parts:
        values = {name: value for name, value in values.items() if name != tag}
    cls = key.chosen(values)
    if cls is None:
        return dict(values)
    kind = kind_of(cls)
    return ({tag: kind} if kind else {}) | fit(cls, values, own)


def check(classes: Sequence[Model], overlay: Any, where: str) -> None:
    """Refuse keys and values of an overlay that none of several methods can have.

    Args:
        classes: the methods that the overlay is for.
        overlay: the overlay.
        where: its dotted key, for messages.

    Raises:
        BenchError: unknown keys before other faults; each with its dotted key.
    """
    faults = list(_faults(classes, overlay, where))
    for fault in sorted(faults, key=lambda fault: not fault.startswith("unknown key")):
        raise BenchError(fault)


def _faults(classes: Sequence[Model], overlay: Any, where: str) -> Iterator[str]:
    """Yield a message for each fault of an overlay, see `check`."""
    if not isinstance(overlay, Mapping):
        yield no_group(where, overlay)
        return
    for key, value in overlay.items():
        owners = [keys_of(cls)[key] for cls in classes if key in keys_of(cls)]
        sections = dict.fromkeys(cls for owner in owners for cls in owner.classes)
        name = dotted(where, key)
        if not owners:
            yield unknown_key(where, str(key), nearest_key(classes, str(key)))
        elif sections:
            is_null = value in (None, "null")
            if not (is_null and any(owner.nullable for owner in owners)):
                yield from _section_faults([*sections], value, name)
        elif key != tag_of(classes):
            faults = [
                value_fault(cls, key, value, name)
                for cls in classes
                if key in keys_of(cls)
            ]
            if all(faults):
                yield str(faults[0])


def _section_faults(sections: Sequence[Model], value: Any, name: str) -> Iterator[str]:
    """Yield a message for each fault of the value of a section or part."""
    tag = tag_of(sections)
    kinds = sorted(kind for cls in sections if (kind := kind_of(cls)))
    if kinds and tag == "kind":
        value = with_kind(value)
    is_group = isinstance(value, Mapping)
    if kinds and (not is_group or (tag in value and value[tag] not in kinds)):
        yield unknown_kind(name, value, tag, ", ".join(kinds))
    else:
        yield from _faults(sections, value, name)


def set_key(overlay: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return a copy of an overlay with a value at a dotted key, e.g.
    "clipping.percentile".
    """
    first, _, rest = name.partition(".")
    copied = copy.deepcopy(dict(overlay))
    if not rest:
        copied[first] = copy.deepcopy(value)
        return copied
    inner = with_kind(copied.get(first))
    copied[first] = set_key(inner if isinstance(inner, Mapping) else {}, rest, value)
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
