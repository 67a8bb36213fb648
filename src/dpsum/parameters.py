"""Parameters: fields of a frozen dataclass with their bounds and documentation.

Clipping rules and noises declare their parameters once, here in `dpsum`. The benchmark
builds its configuration schema and `docs/configuration.md` from them.
"""

import dataclasses
import operator
from typing import Any

from dpsum.errors import DpsumError

LARGEST = 1e150
"""The largest threshold, noise or denominator; 1 / LARGEST is the smallest. The squares
of both are within the range of double precision.
"""

BOUNDS = {
    "gt": (operator.gt, "above"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "below"),
    "le": (operator.le, "at most"),
}
"""Comparison of each bound, and its wording in messages."""


def parameter(
    default: Any,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    doc: str = "",
    paper: str = "",
    kw_only: bool = False,
) -> Any:
    """Return a dataclass field with bounds and documentation.

    Args:
        default: default value.
        gt: lower bound; the value must be above it. A value of None is never out of
            bounds.
        ge: lower bound; the value must be at least this.
        lt: upper bound; the value must be below it.
        le: upper bound; the value must be at most this.
        doc: meaning of the parameter.
        paper: the paper's value, if it states one.
        kw_only: whether the field is keyword-only.
    """
    bounds = {"gt": gt, "ge": ge, "lt": lt, "le": le}
    return dataclasses.field(
        default=default,
        kw_only=kw_only,
        metadata={"doc": doc, "paper": paper, "bounds": bounds},
    )


def check_bounds(instance: Any) -> None:
    """Check the parameters of a dataclass instance against their bounds.

    Raises:
        DpsumError: a number is out of its bounds, or not finite.
    """
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if not isinstance(value, (int, float)):
            continue
        for name, bound in field.metadata.get("bounds", {}).items():
            compare, words = BOUNDS[name]
            if bound is not None and not compare(value, bound):
                raise DpsumError(f"{field.name} is {value}: expected {words} {bound:g}")


def check_range(name: str, value: float) -> None:
    """Check that a threshold or a deviation is in the range of the ledger.

    Raises:
        DpsumError: the value is not a number from 1e-150 to 1e150.
    """
    if not 1 / LARGEST <= value <= LARGEST:
        raise DpsumError(
            f"{name} is {value}: it must be finite and above 0, from {1 / LARGEST:g} to"
            f" {LARGEST:g}"
        )
