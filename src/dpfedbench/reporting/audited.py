"""Audits beside accounts: wherever an ε is shown, it is marked if the lower bound of an
audit exceeds it.

A bound errs by chance. With correct code one audit in twenty exceeds what holds, mostly
by little; audit.json has the chance of an excess as large (`chance`). Of n audits that
are shown in one place, the chance that any has such an excess is at most n times that.
Where this is below `LEVEL` the account is refuted, and what it says is not proved.
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
"""Fewer audits count as so many: then an excess must be as rare as one in a thousand to
refute (`audit.report`).
"""

Audit = Mapping[str, Any]
"""What audit.json says of one unit and observer."""


class Audits:
    """The audits of the private configurations that are shown in one place, a page or a
    table.

    Raises:
        BenchError: an audit is missing or damaged.
    """

    def __init__(self, entries: Sequence[Private], results: str | Path) -> None:
        files = {
            entry.audited: read_audits(
                Path(results, "runs", entry.audited, "audit.json")
            )
            for entry in entries
        }
        self._of = {entry.group: files[entry.audited] for entry in entries}
        self.count = sum(map(len, files.values()))

    def of(self, group: str, holds: Entry | None) -> Audit | None:
        """That of a configuration for the unit and observer of what holds; None where
        there is none.
        """
        return (
            None
            if holds is None
            else self._of.get(group, {}).get((holds.unit, holds.observer))
        )

    def marked(self, group: str, result: CellResult) -> CellResult:
        """A configuration's result, with both ε marked where its audit is above
        them.
        """
        audit = self.of(group, result.runs[0].account.profiles.get("holds"))
        if audit is None:
            return result
        claimed, holds = (
            marked(epsilon, audit, self.count)
            for epsilon in (result.claimed, result.holds)
        )
        return dataclasses.replace(result, claimed=claimed, holds=holds)


def read_audits(path: Path) -> dict[tuple[str, str], Audit]:
    """What an audit.json says, by unit and observer.

    Raises:
        BenchError: the file is missing or damaged.
    """
    audit = read_json(path)
    try:
        if audit["epsilon"] is None:
            return {}
        return {
            (each["unit"], each["observer"]): each
            for each in (*audit.get("also", ()), audit)
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise BenchError(
            f"{path} is no audit ({error}): delete it and run the workflow again"
        ) from error


def beside(account: Account, audits: Mapping[tuple[str, str], Audit]) -> Account:
    """An account of a single run whose statuses say where its own audit exceeds what
    holds.

    The audit is compared with what holds at its own δ, whatever the δ of the account: a
    mechanism that leaks more there is not the one accounted for.
    """
    holds = account.profiles.get("holds")
    audit = None if holds is None else audits.get((holds.unit, holds.observer))

    def with_status(entry: Entry) -> Entry:
        if audit is None:
            return entry
        return dataclasses.replace(
            entry,
            status=marked(
                dataclasses.replace(entry, epsilon_high=math.inf), audit, 1
            ).stands,
        )

    profiles, groups = (
        {name: with_status(entry) for name, entry in entries.items()}
        for entries in (account.profiles, account.groups)
    )
    also = tuple(beside(other, audits) for other in account.also)
    return dataclasses.replace(account, profiles=profiles, groups=groups, also=also)


def marked(epsilon: Entry, audit: Audit, count: int) -> Entry:
    """An ε, claimed or that holds, with what an audit of the same unit and observer
    says against it.

    `count` audits stand in the same place. An ε that claims nothing stays as it is.
    """
    bound, own = float(audit["epsilon"]), float(audit.get("epsilon_holds", math.inf))
    if epsilon.status in ("void", "none") or not bound > min(epsilon.epsilon_high, own):
        return epsilon
    chance = float(audit.get("chance", 1 - audit["confidence"]))
    said = (
        f"audited above what holds, as {100 * chance:.2g} % of audits of right code are"
    )
    refuted = chance * max(count, _FEWEST) <= LEVEL
    return dataclasses.replace(
        epsilon, status="refuted" if refuted else epsilon.status, audit=said
    )
