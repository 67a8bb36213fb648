"""Audits beside accounts: an ε says so wherever it is shown, where an audit's lower bound is above it.

A bound errs by chance: of right code one audit in twenty is above what holds, mostly by little, and audit.json says how
often one is as far above (`chance`). That is of one audit. Of the n audits that stand in one place right code makes one
with a chance of n times that at most: below `LEVEL` the account is refuted, and what it says is not proved.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json
from dpfedbench.reporting.described import Private
from dpfedbench.reporting.results import CellResult
from dpsum.accounting.account import Account
from dpsum.accounting.profiles import Entry

LEVEL = 0.01
"""The chance with which right code has any of a page's accounts called refuted."""

_FEWEST = 10
"""As so many audits are fewer counted: what one of a thousand shows is then the least that refutes (`audit.report`)."""

Audit = Mapping[str, Any]
"""What audit.json says of one unit and observer."""


class Audits:
    """The audits that stand in one place, a page or a table.

    Args:
        entries: the private configurations shown there.
        results: the results folder.

    Raises:
        BenchError: an audit is missing or damaged.
    """

    def __init__(self, entries: Sequence[Private], results: str | Path) -> None:
        files = {entry.audited: parts_of(Path(results, "runs", entry.audited, "audit.json")) for entry in entries}
        self._of = {entry.group: files[entry.audited] for entry in entries}
        self.count = sum(map(len, files.values()))

    def of(self, group: str) -> Mapping[tuple[str, str], Audit]:
        """Those of a configuration, by unit and observer; none of one that is not among the entries."""
        return self._of.get(group, {})

    def marked(self, group: str, result: CellResult) -> CellResult:
        """A configuration's result, with both ε marked where its audit is above them."""
        holds = result.runs[0].account.profiles.get("holds")
        found = self.of(group).get((holds.unit, holds.observer)) if holds is not None else None
        if found is None:
            return result
        claimed, held = (marked(epsilon, found, self.count) for epsilon in (result.claimed, result.holds))
        return dataclasses.replace(result, claimed=claimed, holds=held)


def parts_of(path: Path) -> dict[tuple[str, str], Audit]:
    """What an audit.json says of each unit and observer.

    Raises:
        BenchError: the file is missing or damaged.
    """
    audit = read_json(path)
    try:
        if audit["epsilon"] is None:
            return {}
        return {(part["unit"], part["observer"]): part for part in (*audit.get("also", ()), audit)}
    except (KeyError, TypeError, AttributeError) as error:
        raise BenchError(f"{path} is no audit ({error}): delete it and run the workflow again") from error


def beside(account: Account, parts: Mapping[tuple[str, str], Audit]) -> Account:
    """An account of a single run whose statuses say where its audit is above what holds.

    Whatever the delta, the audit is set against what holds at its own: a mechanism that leaks more there is not the one
    accounted for.

    Args:
        account: at any delta.
        parts: of the run's own audit.json.
    """
    holds = account.profiles.get("holds")
    found = parts.get((holds.unit, holds.observer)) if holds is not None else None

    def stands(entry: Entry) -> Entry:
        if found is None:
            return entry
        told = marked(dataclasses.replace(entry, epsilon_high=math.inf), found, 1)
        return dataclasses.replace(entry, status=told.stands)

    return dataclasses.replace(
        account,
        profiles={name: stands(entry) for name, entry in account.profiles.items()},
        groups={name: stands(entry) for name, entry in account.groups.items()},
        also=tuple(beside(one, parts) for one in account.also),
    )


def marked(epsilon: Entry, audit: Audit, count: int) -> Entry:
    """An ε with what an audit says against it, if it does; one that claims nothing stays as it is.

    Args:
        epsilon: claimed, or that holds.
        audit: of the same unit and observer.
        count: audits that stand in the same place.
    """
    found, own = float(audit["epsilon"]), float(audit.get("epsilon_holds", math.inf))
    if epsilon.status in ("void", "none") or not found > min(epsilon.epsilon_high, own):
        return epsilon
    chance = float(audit.get("chance", 1 - audit["confidence"]))
    said = f"audited above what holds, as {100 * chance:.2g} % of audits of right code are"
    refuted = chance * max(count, _FEWEST) <= LEVEL
    return dataclasses.replace(epsilon, status="refuted" if refuted else epsilon.status, audit=said)
