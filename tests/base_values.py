"""One base configuration for runs of all methods, in tests.

The configuration itself refuses keys that do not fit (`dpfedbench.config.merge.lay`).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dpfedbench.config.kinds import kind_of
from dpfedbench.config.schema import Key, keys_of, with_kind

NOTHING: Mapping[str, Any] = MappingProxyType({})


def fit(
    cls: Any, values: Mapping[str, Any], run_overlay: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """Return the values without the keys that a method and its parts do not have.

    A kind that the method does not accept is left out too, so that the method's own
    default remains.

    Args:
        cls: the method, or a section of it.
        values: merged overlays for several methods.
        run_overlay: the overlay of the run alone. Its keys stay, so that the method
            refuses those that do not fit.
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
