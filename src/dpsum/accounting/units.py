"""Rules of composition of the sums of a run.

Sums that read the same units are composed. For sums that read disjoint parts of the
units, the maximum counts. Plans, budgets and accounts use these rules, for `SumSpec`
and for lines of a ledger alike:

- Sums of the same unit compose, whoever sees them. Where one is for the server alone,
  the account is against the server, which also sees what everyone sees. It is an upper
  bound for everyone.
- The maximum counts only for disjoint parts of the records that the sums declare: no
  record is in two parts. A client has records in every part, so that a sum over clients
  has no part. A sum that names no part reads all of every unit, and so composes with the sums of
  every part.
- Sums over records and sums over clients are two guarantees only if no observer sees
  both kinds. Records are then protected against the server, to which clients send
  functions of their own releases, and clients against everyone else, who sees the
  server's releases. Otherwise a client counts as all its records, which no analysis
  covers.
- Independent Gaussian releases of one round, of units that were sampled together, are
  one Gaussian of multiplier (sum of z^-2)^-1/2. Nothing else composes here.
- Sums whose cohorts are drawn independently of each other (`Sampling.draw`) are
  mechanisms that run side by side: their privacy losses add up, whichever is released
  first in a round (Vadhan and Zhang 2023, concurrent composition).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from dpsum.errors import DpsumError

if TYPE_CHECKING:
    from dpsum.ledger import Release

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


def check_part(event: Read) -> None:
    """Refuse a sum that names a part of the records but protects clients.

    Sums read disjoint parts only where they declare them: names say nothing.

    Raises:
        DpsumError: names the sum and the part.
    """
    if event.unit != RECORD:
        raise DpsumError(
            f"{event.name} protects {event.unit}s, but reads a part of the records"
            f" ({event.part}): parts are of records, and a {event.unit} counts with all"
            " its records; leave the part out, or let the sum protect records"
        )


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
        DpsumError: some sums read a part and others all records, or a sum over clients
            names a part.
    """
    parts: dict[str, list[One]] = {}
    for event in events:
        if event.part:
            check_part(event)
        parts.setdefault(event.part or "", []).append(event)
    if "" in parts and len(parts) > 1:
        named_part = next(part for part in parts if part)
        raise DpsumError(
            f"{parts[named_part][0].name} reads a subset of the records and other"
            f" sums read all ({parts[''][0].name}): no analysis composes them; give"
            " each sum its own disjoint subset of records, or leave one out"
        )
    return parts


def by_draw(events: Sequence[Release]) -> list[list[Release]]:
    """Return lines of the same units, grouped by the draw of their cohorts.

    Lines of one draw have the same cohorts; the groups are drawn independently.

    Raises:
        DpsumError: nothing is known about two of the draws together.
    """
    draws: dict[str | None, list[Release]] = {}
    for event in events:
        draws.setdefault(event.sampler.draw, []).append(event)
    names = list(dict.fromkeys(event.name for event in events))
    if len(names) == 1:
        if len(draws) == 1:
            return [list(events)]
        raise DpsumError(
            f"the cohorts of {names[0]} have another draw from some round on: give the"
            " participation the same seed at a restart"
        )
    streams = {draw.partition("/")[0] for draw in draws if draw is not None}
    if len(streams) == len(draws):
        return list(draws.values())
    first, *further_names = names
    raise DpsumError(
        f"the ledger does not say whether the cohorts of {first} and of"
        f" {', '.join(further_names) or first} are one draw or independent draws: give"
        " both sums one participation, or name the draw in their sampler (sampler.draw);"
        " a ledger of an earlier version has to be trained again"
    )


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
