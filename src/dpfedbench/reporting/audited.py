"""Audits beside accounts: wherever an ε is shown, it is marked if the lower bound of an audit exceeds it.

A bound errs by chance. With correct code one audit in twenty exceeds what holds, mostly by little; audit.json has the
chance of an excess as large (`chance`). Of n audits that are shown in one place, the chance that any has such an excess
is at most n times that. Where this is below `LEVEL` the account is refuted, and what it says is not proved.
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
"""The chance that a page of correct code has any account called refuted."""

_FEWEST = 10
"""Fewer audits count as so many: then an excess must be as rare as one in a thousand to refute (`audit.report`)."""

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
    """An account of a single run whose statuses say where its audit exceeds what holds.

    The audit is compared with what holds at its own δ, whatever the δ of the account: a mechanism that leaks more there
    is not the one accounted for.

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
