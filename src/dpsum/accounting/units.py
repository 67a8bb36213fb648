"""Rules of composition: sums of a run that read the same units compose, sums that read
disjoint parts of them take the maximum.

A run's plan, its budgets and its account ask this one file, of `sums.SumSpec` and of ledger
lines alike. The rules:

- Sums of the same unit compose, whoever sees them. Where one is for the server alone,
  the account is against the server, which sees what everyone sees too; it is an upper
  end for everyone.
- Only disjoint parts of the records take the maximum: no record is in two parts. A sum
  that names no part reads all of every unit, and so composes with the sums of every
  part.
- Sums of records and sums of clients are two guarantees only if no observer has both
  kinds: records against the server, to whom clients send what follows from their own
  releases, and clients against everyone else, who sees what the server releases.
  Otherwise a client is as many records as it holds, and no analysis has that.
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
    """The properties that sums and lines of a ledger share."""

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
"""The part of a few-shot client's examples that sums of these names read; their lines
have never named it.
"""

_BESIDE = ("below-threshold-count", "clipped-norm-sum")
"""What clipping rules release beside a sum, of the units that the sum reads."""


def part_of(event: Read) -> str:
    """The part of the records that a sum reads; "": all of every unit."""
    if event.part:
        return event.part
    if event.unit != RECORD:
        return ""
    return _SETS.get(event.name, "")


def by_unit(events: Iterable[One]) -> dict[str, list[One]]:
    """Sums, or lines of a ledger, by their unit; DpsumError where one observer has sums
    of both units.
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
                f"{first.name} protects records from {first.observer} and {second.name}"
                f" clients from {second.observer}: no analysis composes sums of two"
                " units that one observer has; let both protect the same unit, or"
                " clients' own sums reach the server alone"
            )
    return units


def by_part(events: Sequence[One]) -> dict[str, list[One]]:
    """Sums of one unit, or their lines, by the part of the records that they read; ""
    where they read all.

    Raises:
        DpsumError: some read a part and others all.
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
            f"{parts[named_part][0].name} is of a part of the records and others of all"
            f" ({parts[''][0].name}): no analysis composes them; give each a part of"
            " its own, of which none shares a record with another, or leave one out"
        )
    return parts


def _sampler(event: Read) -> object:
    """The sampler of a line of a ledger; a sum has none yet."""
    return getattr(event, "sampler", None)


def cannot_compose(
    one: str, other: str, unit: str, part: str, why: str = "are not sampled alike"
) -> str:
    """The message about two sums that read the same units, and that no analysis
    composes.
    """
    return (
        f"{one} and {other} read the same {unit}s{f' (the {part})' if part else ''} but"
        f" {why}: no analysis composes them; let each read a part of the records of its"
        " own, or leave one out"
    )


def tells_rounds(own: Read, kind: str) -> str:
    """The message about clients' own releases beside a sum whose account needs secret
    who takes part when.
    """
    return (
        f"each client's {own.name} is seen by {own.observer}, which tells the rounds"
        f" that {kind} participation keeps secret: set participation.kind to one-pass,"
        " where rounds are known"
    )
