"""Accountants, found by place: one for each pair of a mechanism and a way of sampling.

Each says what it takes for granted (`explanation`); `docs/privacy.md` has a table of
all, with their guarantees. Another pair raises and prints no number. A new one is a
class that names its pair: in a new file here, or anywhere and given to `add`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsum.errors import DpsumError

if TYPE_CHECKING:
    from dpsum.accounting.accountant import Accountant
    from dpsum.ledger import Release


_added: dict[type[Accountant], bool] = {}
"""Accountants of other packages, and whether each replaces one of this package."""


def add(accountant: type[Accountant], *, replaces: bool = False) -> None:
    """Add the accountant of a pair that has none here; if it `replaces`, also of one
    that has.
    """
    _added[accountant] = replaces
    _known.cache_clear()


@functools.cache
def _known() -> dict[tuple[str, str], Accountant]:
    """Return all accountants by their pairs.

    Raises:
        DpsumError: two are for the same pair.
    """
    from dpsum.accounting.accountant import Accountant

    classes: dict[type[Accountant], None] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        values = vars(importlib.import_module(module.name))
        for value in values.values():
            if (
                isinstance(value, type)
                and issubclass(value, Accountant)
                and value.__module__ == module.name
            ):
                classes[value] = None
    accountants: dict[tuple[str, str], Accountant] = {}
    for cls in [*classes, *_added]:
        pair = getattr(cls, "pair", None)
        if pair is None:
            continue
        if pair in accountants and not _added.get(cls):
            raise DpsumError(
                f"{cls.__module__} and {type(accountants[pair]).__module__} are both"
                f" for {pair}: keep one"
            )
        accountants[pair] = cls()
    return accountants


def find(mechanism: str, kind: str) -> Accountant:
    """The analysis of a mechanism under a kind of sampler; DpsumError where there is
    none.
    """
    if (mechanism, kind) not in _known():
        samplers = [sampler for noise, sampler in pairs() if noise == mechanism]
        there = (
            f"of it, with {', '.join(samplers)}"
            if samplers
            else f"of {', '.join(dict(pairs()))} noise"
        )
        raise DpsumError(
            f"no analysis for {mechanism} noise with the sampler {kind!r}, so no"
            f" epsilon: there are analyses {there}"
        )
    return _known()[mechanism, kind]


def pairs() -> list[tuple[str, str]]:
    """Every mechanism and kind of sampler that there is an analysis of, by name."""
    return sorted(_known())


def known(mechanism: str, kind: str) -> bool:
    """Whether there is such an analysis that holds even where everybody knows who is in
    which release.
    """
    accountant = _known().get((mechanism, kind))
    return accountant is not None and accountant.known


def of(releases: Sequence[Release]) -> Accountant:
    """The analysis of a ledger's releases, found by the first of them; DpsumError where
    one of them has none.
    """
    accountants = [
        find(*pair)
        for pair in dict.fromkeys(
            (event.mechanism, event.sampler["kind"]) for event in releases
        )
    ]
    return accountants[0]
