"""Rules of composition of the sums of a run.

Sums that read the same units are composed. For sums that read disjoint parts of the
units, the maximum counts. Plans, budgets and accounts use these rules, for `SumSpec`
and for lines of a ledger alike:

- Sums of the same unit compose, whoever sees them. Where one is for the server alone,
  the account is against the server, which also sees what everyone sees. It is an upper
  bound for everyone.
- The maximum counts only for disjoint parts of the records: no record is in two parts.
  A sum that names no part reads all of every unit, and so composes with the sums of
  every part.
- Sums over records and sums over clients are two guarantees only if no observer sees
  both kinds. Records are then protected against the server, to which clients send
  functions of their own releases, and clients against everyone else, who sees the
  server's releases. Otherwise a client counts as all its records, which no analysis
  covers.
- Independent Gaussian releases of one round, of units that were sampled together, are
  one Gaussian of multiplier (sum of z^-2)^-1/2. Nothing else composes here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from dpsum.errors import DpsumError

CLIENT = "client"
RECORD = "record"


class Read(Protocol):
    """Properties that sums and lines of a ledger share."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def observer(self) -> str: ...
    @property
    def part(self) -> str | None: ...


One = TypeVar("One", bound=Read)

_SETS = {
    "support-gradient-sum": "support set",
    "client-query-gradient-sum": "query set",
    "query-gradient-sum": "query set",
}
"""Part of a few-shot client's examples that sums of these names read; their lines do
not name it.
"""

_BESIDE = ("below-threshold-count", "clipped-norm-sum")
"""Names of clipping rules' own releases, which read the units of their sum."""


def part_of(event: Read) -> str:
    """Return the part of the records that a sum reads; "": all of every unit."""
    if event.part:
        return event.part
    if event.unit != RECORD:
        return ""
    return _SETS.get(event.name, "")


def by_unit(events: Iterable[One]) -> dict[str, list[One]]:
    """Return sums, or lines of a ledger, grouped by their unit.

    Raises:
        DpsumError: one observer sees sums of both units.
    """
    units: dict[str, list[One]] = {}
    for event in events:
        units.setdefault(event.unit, []).append(event)
    if len(units) > 1:
        records = units.get(RECORD, [])
        clients = units.get(CLIENT, [])
        if any(event.observer != "server" for event in records) or any(
            event.observer != "everyone" for event in clients
        ):
            first = records[0]
            second = clients[0]
            raise DpsumError(
                f"{first.name} protects records from {first.observer} and"
                f" {second.name} clients from {second.observer}: no analysis composes"
                " sums over two units that one observer sees; let both protect the"
                " same unit, or show clients' own sums to the server alone"
            )
    return units


def by_part(events: Sequence[One]) -> dict[str, list[One]]:
    """Return sums of one unit, or their lines, grouped by the part that they read.

    The part is "" where they read all records.

    Raises:
        DpsumError: some sums read a part and others all records.
    """
    kinds = {}
    for event in reversed(events):
        kinds[event.name, event.part] = event
    read = {
        key: part_of(event)
        for key, event in kinds.items()
        if event.part or event.name not in _BESIDE
    }
    for key, event in kinds.items():
        if key not in read:
            matching_parts = {
                read[of]
                for of in read
                if kinds[of].unit == event.unit
                and _sampler(kinds[of]) == _sampler(event)
            }
            if len(matching_parts) == 1:
                read[key] = matching_parts.pop()
            else:
                read[key] = ""
    parts: dict[str, list[One]] = {}
    for event in events:
        part = read[event.name, event.part]
        parts.setdefault(part, []).append(event)
    if "" in parts and len(parts) > 1:
        named_part = next(part for part in parts if part)
        raise DpsumError(
            f"{parts[named_part][0].name} reads a subset of the records and other"
            f" sums read all ({parts[''][0].name}): no analysis composes them; give"
            " each sum its own disjoint subset of records, or leave one out"
        )
    return parts


def _sampler(event: Read) -> object:
    """Return the sampler of a line of a ledger; None for a sum, which has none yet."""
    return getattr(event, "sampler", None)


def cannot_compose(
    one: str, other: str, unit: str, part: str, why: str = "are not sampled alike"
) -> str:
    """Return the message about two sums of the same units that no analysis composes."""
    return (
        f"{one} and {other} read the same {unit}s{f' (the {part})' if part else ''}"
        f" but {why}: no analysis composes them; let each read its own disjoint"
        " subset of records, or leave one out"
    )


def tells_rounds(own: Read, kind: str) -> str:
    """Return the message about within-task releases that reveal secret rounds.

    The account of another sum needs these rounds secret.
    """
    return (
        f"each client's {own.name} is seen by {own.observer}, which reveals the"
        f" rounds that {kind} participation keeps secret: set participation.kind to"
        " one-pass, whose account does not need secret rounds"
    )
