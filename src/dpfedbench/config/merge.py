"""Merging of the overlays of a run.

`lay` lays an overlay over the values of a method, and refuses keys that the method does
not have. `keep_declared` prepares an overlay that is for several methods. `merge` lays
overlays over one another, key by key, whatever they are for.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpfedbench import plugins
from dpfedbench.config.kinds import (
    Model,
    is_part,
    kind_of,
    kinds_of,
    root_of,
    tag_of,
)
from dpfedbench.config.messages import (
    dotted,
    no_group,
    other_name,
    unknown_key,
    unknown_kind,
)
from dpfedbench.config.schema import (
    Key,
    keys_of,
    nearest_key,
    value_fault,
    with_kind,
)
from dpfedbench.errors import BenchError


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


class KeyFault(BenchError):
    """Fault of one key of an overlay.

    Attributes:
        key: the dotted key in the configuration.
    """

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


def lay(
    cls: Model, values: Mapping[str, Any], overlay: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Return the values of a method with an overlay laid over them.

    A part of another kind keeps the values of the keys that both kinds have, and takes
    its own defaults for the rest. Of a renamed key (`former_names`) an overlay may have
    both names, which other kinds of the part have: `cohort` and `lot`. Each kind takes
    the one that it has.

    Args:
        cls: the method, or a section of it.
        values: plain values of the method.
        overlay: plain values of some keys. All of them have to be keys of the method.
        where: dotted key of the overlay, for messages.

    Raises:
        KeyFault: the method, or the chosen part, does not have a key or a kind.
    """
    laid = dict(values)
    for name, value in overlay.items():
        key = keys_of(cls).get(name)
        if key is None:
            message = unknown_key(where, str(name), nearest_key([cls], str(name)))
            raise KeyFault(message, dotted(where, name))
        if key.bases:
            value = _lay_part(key, laid.get(name), value, dotted(where, name))
        laid[name] = value
    return laid


def _lay_part(key: Key, lower: Any, value: Any, where: str) -> Any:
    """Return the values of a section or part with an overlay laid over them."""
    group = with_kind(value)
    if not isinstance(group, Mapping):
        return value
    lower = lower if isinstance(lower, Mapping) else {}
    cls = key.chosen({**lower, **group})
    if cls is None:
        message = unknown_kind(where, group, key.tag, ", ".join(key.parts))
        raise KeyFault(message, dotted(where, key.tag))
    if cls is not key.chosen(lower):
        lower = {
            name: item
            for name, item in lower.items()
            if name in keys_of(cls) and name != key.tag
        }
    if is_part(cls):
        group = _without_names_of_other_kinds(cls, group, where)
    for name in group.keys() - keys_of(cls).keys() - {key.tag}:
        kinds = [kind for kind, part in key.parts.items() if name in keys_of(part)]
        known = nearest_key([cls], str(name))
        message = unknown_key(where, str(name), known, ", ".join(kinds))
        raise KeyFault(message, dotted(where, name))
    return lay(cls, lower, group, where)


def _without_names_of_other_kinds(
    cls: Model, group: Mapping[str, Any], where: str
) -> Mapping[str, Any]:
    """Return the values for a part without the names that other kinds have for a key.

    Raises:
        KeyFault: the values have the other name alone.
    """
    left_out = set()
    for name, former_name in _former_names(root_of(cls)).items():
        valid_name, invalid_name = (former_name, name)
        if name in keys_of(cls):
            valid_name, invalid_name = (name, former_name)
        if invalid_name in group and valid_name in group:
            left_out.add(invalid_name)
        elif invalid_name in group:
            message = other_name(where, invalid_name, valid_name, str(kind_of(cls)))
            raise KeyFault(message, dotted(where, invalid_name))
    return {name: value for name, value in group.items() if name not in left_out}


@plugins.cached
def _former_names(root: Model) -> dict[str, str]:
    """Return the earlier names of the renamed keys of a family's parts, by name.

    Args:
        root: the family's base.
    """
    names: dict[str, str] = {}
    for part in kinds_of(root).values():
        names |= getattr(part, "former_names", {})
    return names


def keep_declared(cls: Model, overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return an overlay for several methods without the parts that are not for one of
    them: those that it does not declare, and those of a kind that it does not accept.

    A part is kept or left out as a whole. The keys in it have to fit (`lay`).

    Args:
        cls: the method.
        overlay: plain values of some keys.
    """
    return {
        name: value
        for name, value in overlay.items()
        if (key := keys_of(cls).get(name)) is not None and _accepts(key, value)
    }


def _accepts(key: Key, value: Any) -> bool:
    """Return whether a key accepts the kind of a part; True without a kind."""
    group = with_kind(value)
    if not key.parts or not isinstance(group, Mapping) or key.tag not in group:
        return True
    return str(group[key.tag]) in key.parts


def check(classes: Sequence[Model], overlay: Any, where: str) -> None:
    """Refuse keys and values of an overlay that none of several methods can have.

    Args:
        classes: the methods that the overlay is for.
        overlay: the overlay.
        where: its dotted key, for messages.

    Raises:
        KeyFault: unknown keys before other faults; each with its dotted key.
    """
    faults = list(_faults(classes, overlay, where))
    for fault in sorted(faults, key=lambda fault: "unknown key" not in str(fault)[:11]):
        raise fault


def _faults(classes: Sequence[Model], overlay: Any, where: str) -> Iterator[KeyFault]:
    """Yield each fault of an overlay, see `check`."""
    if not isinstance(overlay, Mapping):
        yield KeyFault(no_group(where, overlay), where)
        return
    for name, value in overlay.items():
        owners = [cls for cls in classes if name in keys_of(cls)]
        if not owners:
            message = unknown_key(where, str(name), nearest_key(classes, str(name)))
            yield KeyFault(message, dotted(where, name))
        elif name != tag_of(classes):
            yield from _faults_at(owners, name, value, dotted(where, name))


def _faults_at(
    owners: Sequence[Model], key: str, value: Any, where: str
) -> Iterator[KeyFault]:
    """Yield each fault of the value at a key of several sections."""
    sections, kinds, is_nullable = _accepted(tuple(owners), key)
    if not sections:
        first_fault = value_fault(owners[0], key, value, where)
        if first_fault and all(
            value_fault(cls, key, value, where) for cls in owners[1:]
        ):
            yield KeyFault(first_fault, where)
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
        yield KeyFault(unknown_kind(where, values, tag, ", ".join(kinds)), where)


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
