"""Merging of the overlays of a run.

`merge` lays overlays over one another, key by key, whatever they are for. `fit` then
leaves out the keys that a method and its selected parts do not have. Overlays are
checked before (`check`), so that a misspelt key is not left out without a word.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dpfedbench import plugins
from dpfedbench.config.kinds import Model, kind_of, tag_of, with_kind
from dpfedbench.config.messages import dotted, no_group, unknown_key, unknown_kind
from dpfedbench.config.schema import Key, keys_of, nearest_key, value_fault
from dpfedbench.errors import BenchError

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""Overlay without a key."""


def merge(*overlays: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge later overlays over earlier ones, key by key.

    Text beside a group of keys is the group's kind: `poisson` over `{kind: one-pass,
    rounds: 20}` is `{kind: poisson, rounds: 20}`. None is an empty overlay. The result
    shares values with the overlays.
    """
    merged: dict[str, Any] = {}
    for overlay in overlays:
        for key, value in (overlay or {}).items():
            is_new = key not in merged
            merged[key] = value if is_new else _merge_values(merged[key], value)
    return merged


def _merge_values(lower: Any, value: Any) -> Any:
    """Return the value at a key, with groups of keys merged."""
    if not isinstance(lower, Mapping) and not isinstance(value, Mapping):
        return value
    lower_group = with_kind(lower)
    group = with_kind(value)
    if isinstance(lower_group, Mapping) and isinstance(group, Mapping):
        return merge(lower_group, group)
    return value


def fit(
    cls: Model, values: Mapping[str, Any], run_overlay: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """Return the values without the keys that a method and its parts do not have.

    A kind that the method does not accept is left out too, so that the method's own
    default remains.

    Args:
        cls: the method, or a section of it.
        values: merged overlays for several methods.
        run_overlay: the overlay of the run alone. Its keys stay, so that `read` refuses
            those that do not fit.
    """
    fitted: dict[str, Any] = {}
    for name, value in values.items():
        key = keys_of(cls).get(name)
        if key is not None and key.bases:
            value = _fit_section(key, value, run_overlay.get(name))
            is_kept = value is not None or key.nullable
        else:
            is_kept = key is not None
        if is_kept or name in run_overlay:
            fitted[name] = value
    return fitted


def _fit_section(key: Key, value: Any, run_overlay: Any) -> Any:
    """Return the values of a section or part without the keys that it does not have."""
    values = with_kind(value)
    if not isinstance(values, Mapping):
        return value
    run_values = with_kind(run_overlay)
    if not isinstance(run_values, Mapping):
        run_values = NOTHING
    tag = key.tag
    if tag not in run_values and str(values.get(tag)) not in key.parts:
        values = {name: item for name, item in values.items() if name != tag}
    cls = key.chosen(values)
    if cls is None:
        return values
    fitted = fit(cls, values, run_values)
    kind = kind_of(cls)
    return {tag: kind, **fitted} if kind else fitted


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
    for name, value in overlay.items():
        owners = [cls for cls in classes if name in keys_of(cls)]
        if not owners:
            yield unknown_key(where, str(name), nearest_key(classes, str(name)))
        elif name != tag_of(classes):
            yield from _faults_at(owners, name, value, dotted(where, name))


def _faults_at(
    owners: Sequence[Model], key: str, value: Any, where: str
) -> Iterator[str]:
    """Yield a message for each fault of the value at a key of several sections."""
    sections, kinds, is_nullable = _accepted(tuple(owners), key)
    if not sections:
        faults = [value_fault(cls, key, value, where) for cls in owners]
        if all(faults):
            yield str(faults[0])
        return
    if value in (None, "null") and is_nullable:
        return
    tag = tag_of(sections)
    if not kinds or (tag != "kind" and not isinstance(value, Mapping)):
        yield from _faults(sections, value, where)
        return
    values = with_kind(value) if tag == "kind" else value
    if isinstance(values, Mapping) and values.get(tag, kinds[0]) in kinds:
        yield from _faults(sections, values, where)
    else:
        yield unknown_kind(where, values, tag, ", ".join(kinds))


@plugins.cached
def _accepted(
    owners: tuple[Model, ...], name: str
) -> tuple[list[Model], list[str], bool]:
    """Return the sections that a key of several sections accepts, their kinds, and
    whether it may be null.
    """
    keys = [keys_of(cls)[name] for cls in owners]
    sections = list(dict.fromkeys(cls for key in keys for cls in key.classes))
    kinds = sorted(filter(None, map(kind_of, sections)))
    return sections, kinds, any(key.nullable for key in keys)


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
