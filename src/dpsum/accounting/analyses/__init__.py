"""Registry of accountants: one for each pair of a mechanism and a sampler.

Each states its assumptions (`explanation`); `docs/privacy.md` has a table of all, with
their guarantees. A pair without an accountant raises an error and gets no number. A new
accountant is a class that names its pair: in a new file in this package, or anywhere
and registered with `add`.
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
    """Register an accountant of another package.

    Args:
        accountant: the class.
        replaces: whether it replaces the accountant of this package for its pair.
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

    classes: list[type[Accountant]] = []
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        values = vars(importlib.import_module(module.name))
        classes += [
            value
            for value in values.values()
            if isinstance(value, type)
            and issubclass(value, Accountant)
            and value.__module__ == module.name
        ]
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
    """Return the accountant of a mechanism and a kind of sampler.

    Raises:
        DpsumError: there is none.
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
            f" epsilon: analyses exist {there}"
        )
    return _known()[mechanism, kind]


def pairs() -> list[tuple[str, str]]:
    """Return all pairs of a mechanism and a kind of sampler that have an accountant."""
    return sorted(_known())


def known(mechanism: str, kind: str) -> bool:
    """Return whether a pair has an analysis that allows public participation."""
    accountant = _known().get((mechanism, kind))
    return accountant is not None and accountant.known


def of(releases: Sequence[Release]) -> Accountant:
    """Return the accountant of a ledger's first release.

    Raises:
        DpsumError: one of the releases has no accountant.
    """
    accountants = [
        find(*pair)
        for pair in dict.fromkeys(
            (event.mechanism, event.sampler["kind"]) for event in releases
        )
    ]
    return accountants[0]
