"""Canaries in the code that ran: drawn contributions go through a run's own rounds, and
its releases are scored.

What is audited is the release mechanism: participation, clipping, private sum, noise
stream, denominator, threshold rule and ledger are those of `federation.engine.Rounds`,
called as training calls them. Only the gradients are replaced. There are `ORDINARY`
coordinates with drawn gradients, and one coordinate for each canary. A canary is a unit
(client or record) of its own; by a secret coin its contribution is far above any
threshold along its coordinate, or zero (zero-out adjacency). All randomness, the noise
too, is of a seed made for the audit: what is measured is the mechanism, not what the
published seed of the run would tell.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfedbench.audit.scores import (
    CanaryScores,
    Decorrelated,
    RoundByRound,
    SecretRounds,
)
from dpfedbench.audit.units import (
    HEAD,
    ORDINARY,
    Coordinates,
    Units,
    canary_units,
)
from dpfedbench.evaluation.held_out import NoMeasures
from dpfedbench.federation.rounds import Rounds
from dpfedbench.method import Method
from dpfedbench.models.gradients import Choice, Measured
from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpfedbench.parts.client_updates.client_update import Clients, Stream
from dpsum.accounting.analyses import find
from dpsum.accumulator import Observer
from dpsum.audit.ideal import Drawn
from dpsum.clipping import Extra
from dpsum.ledger import Ledger, Release
from dpsum.progress import Progress
from dpsum.randomness import stream
from dpsum.sums import SumSpec

_STEPS = 1000
"""Lots, of all clients together, up to which more than one client is audited."""

_WORK = 12_000_000
"""Canaries times lots up to which a client has all canaries that are asked for; beyond
it at least a thousand.
"""

_CHUNK = 256


# In place of the clients, or of what they hold


class ClientSource(Clients):
    """Clients with given contributions, for a sum that the server takes; each of
    several messages is the same.
    """

    def __init__(self, net: Coordinates, units: Units, *, each: int = 1) -> None:
        self.net = net
        self.units = units
        self.each = each
        self.messages = 1

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Their contributions, whatever the model and the round are."""
        for start in range(0, len(cohort), _CHUNK):
            ids = cohort[start : start + _CHUNK]
            net = self.net
            width = net.shared_dimension
            if net.groups > 1:
                width = net.ordinary + net.reserved
            out = np.zeros((len(ids) * self.each, width), np.float32)
            self.units.fill(
                ids, out[:: self.each]
            )  # of a client that makes several, the first counts
            rows = torch.from_numpy(net.spread(out))
            messages = (
                rows if self.messages == 1 else rows.expand(self.messages, -1, -1)
            )
            yield messages, np.zeros(len(ids)), np.zeros(len(ids))


class RecordSource:
    """Records with given gradients, for sums that clients take over their own: an image
    is a record's number.

    It is what the clients hold, and what takes the gradients of it, in one thread.
    """

    device = "cpu"

    def __init__(self, net: Coordinates, holders: Sequence[Units]) -> None:
        self.net = net
        self.holders = holders
        self._room = np.empty((_CHUNK, net.dimension), np.float32)
        self.images = [np.arange(len(units.coordinates)) for units in holders]
        self.labels = [
            np.full(len(units.coordinates), client)
            for client, units in enumerate(holders)
        ]

    def add_each(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        total: Any,
        *,
        block: str = "",
    ) -> tuple[Measured, np.ndarray]:
        """Add the records' gradients, whatever the model is, as
        `models.gradients.Gradients.add_each` does.
        """
        norms = np.empty(len(x))
        for start in range(0, len(x), _CHUNK):
            ids = x[start : start + _CHUNK]
            self.holders[y[0]].fill(ids, self._room[: len(ids)])
            norms[start : start + _CHUNK] = total.add(
                torch.from_numpy(self._room[: len(ids)])
            )
        return nothing(len(x)), norms


def nothing(count: int) -> Measured:
    """Return empty losses and accuracies, for gradients that are drawn and not
    computed.
    """
    return Measured(np.zeros(count), np.zeros(count), np.ones(count))


def gradients_of(source: Any) -> Choice:
    """Gradients that a source gives in place of a model's."""
    return Choice("audit", lambda: source, "cpu")


def audit_seed(run: Method, *indices: int) -> int:
    """A seed of the audit's own, made from the run's seed and identity."""
    return int(stream(run.seed, f"audit/{run.key}", *indices).integers(2**62))


def run_rounds(
    run: Method,
    source: ClientSource | RecordSource,
    observer: Observer,
    *,
    rounds: int,
    first: float | None = None,
    multipliers: Sequence[float] = (),
    plan: Any = None,
    progress: Progress | None = None,
) -> None:
    """Run so many of a run's own rounds over a source's contributions, and show an
    observer each release.

    Args:
        run: with the audit's seed.
        source: in place of the clients, or of what they hold.
        first: the first threshold, where the run finds it on its data.
        multipliers: z of each round, for noise that follows a public loss, which an
            audit does not have.
        plan: in place of the run's participation plan.
    """
    if isinstance(source, ClientSource):
        source.messages = 1 + len(run.further_sums)
    # The observer is shown each line as it is written; a file of them would be made and
    # removed thousands of times.
    training = Rounds(
        run,
        net=source.net,
        held=source,
        gradients=gradients_of(source),
        measures=NoMeasures(),
        ledger=Ledger(Path(os.devnull)),
        observer=observer,
        plan=plan,
        first=first,
        shared=SharedCoordinates(source.net, source.net.shared_mask()),
        clients=source if isinstance(source, Clients) else None,
    )
    budgeted = training.budget.budgeted
    following = [
        entry
        for entry in budgeted
        if entry.sum.noise is not None and entry.sum.noise.follows_loss
    ]
    for index in range(rounds):
        for entry in following if multipliers else ():
            training.budget.plan_of(entry).noise_multiplier = multipliers[index]
        training.round(index)
        if progress is not None:
            progress.step(index + 1, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryExperiment:
    """One run with canaries.

    Attributes:
        coins: bool [m], whether each canary was in.
        scores: float64 [m], see `audit.scores`.
        releases: the ledger of the audit's own run.
        holders: clients that had canaries among their records; 1 where clients are
            canaries.
        ideal: draws scores of the same canaries by the ledger alone; None: that was not
            asked.
    """

    holders: int
    coins: np.ndarray
    scores: np.ndarray
    releases: list[Release]
    ideal: Drawn | None = None


def extra_of(sum_: SumSpec, threshold: float) -> Extra | None:
    """The release that a sum's rule makes beside it."""
    rule = sum_.clipping
    return (
        None
        if rule is None
        else rule.extra(rule.begin(threshold), noise_multiplier=1.0, cohort=1.0)
    )


def lines_of(sum_: SumSpec, releases: Sequence[Release]) -> list[Release]:
    """The ledger's lines of a sum, and of what its rule releases beside it."""
    extra = extra_of(sum_, 1.0)
    return [line for line in releases if line.name in (sum_.name, extra and extra.name)]


def one_run(
    run: Method,
    sum_: SumSpec,
    *,
    seed: int,
    canaries: int,
    rounds: int,
    threshold: float,
    records: int | Sequence[int] = 0,
    steps: int = 1,
    multipliers: Sequence[float] = (),
    inserted: bool = True,
    added: int = 0,
    dimension: int | None = None,
    groups: int = 1,
    progress: Progress | None = None,
) -> CanaryExperiment:
    """Run the mechanism of a sum once, with canaries.

    Clients that sum over their own records are alike, and no record is at two of them.
    So of a long run only some clients are audited: a record's privacy is that of its
    own client's releases.

    Args:
        run: the run.
        sum_: which of its sums is audited: the server's, or that of clients that hold
            records.
        seed: the audit's.
        canaries: m; of records, as many for each client (rounded down), and at most
            three quarters of them.
        rounds: how many.
        threshold: the first C of the run, which a run that finds it on random data has
            in its ledger.
        records: those that a client holds, where it takes the sum; of clients that
            differ, each one's: all are audited.
        steps: releases of the sum that a client makes in a round.
        multipliers: z of each round, see `run_rounds`.
        inserted: false: no canary is ever inserted, whatever its coin (a null).
        added: of how many clients' releases the observer sees the sum alone, see
            `scores.RoundByRound`.
        dimension: coordinates, where the mechanism follows from their number; None: as
            few as canaries need.
        groups: how many groups of coordinates the sum clips each by itself.
        progress: told of each round.
    """
    run = run.replace(seed=seed)
    assert sum_.noise is not None
    own_sums = run.client_sums
    clients = run.clients.count
    is_client_sum = sum_ in own_sums
    holders = 1
    canaries_each = canaries
    sizes = [records] * clients if isinstance(records, int) else list(records)
    if is_client_sum:
        lots = rounds * steps
        holders = 1 if added else min(clients, max(1, _STEPS // lots))
        holders = holders if isinstance(records, int) else len(sizes)
        canaries_each = min(
            min(canaries, max(1000, _WORK // lots)) // holders, 3 * min(sizes) // 4
        )
    coins = (
        stream(seed, "audit-coins")
        .integers(2, size=(holders, canaries_each))
        .astype(bool)
    )
    net = Coordinates(
        ordinary=ORDINARY,
        reserved=canaries_each,
        dimension=dimension,
        groups=groups,
        head=0 if run.shares_all else HEAD,
    )
    plan = run.participation.plan(clients=clients, seed=seed)
    # A record is in one part of its client's, and the sum is over one of these.
    parts = len({own_sum.part for own_sum in own_sums})
    counts = [size * parts for size in sizes] if is_client_sum else [clients]

    def units_of(
        row: np.ndarray, holder: int, places: np.ndarray | None = None
    ) -> Units:
        return canary_units(
            counts[holder], row, norm=threshold, seed=seed, holder=holder, places=places
        )

    def places(holder: int) -> np.ndarray | None:
        return (
            run.client.places(sum_, seed=seed, client=holder, records=counts[holder])
            if is_client_sum
            else None
        )

    units = [
        units_of(row & inserted, holder, places(holder))
        for holder, row in enumerate(coins)
    ]
    units += [
        units_of(np.zeros(0, bool), holder)
        for holder in range(1, clients if added else 1)
    ]
    taking_part: np.ndarray | slice = slice(None)
    source: ClientSource | RecordSource
    scores: CanaryScores
    if is_client_sum:
        source = RecordSource(net, units)
        scores = RoundByRound(net, sum_.name, holders, added=added)
    else:
        members = None
        once = run.participation.once
        if find(sum_.noise.mechanism, plan.describe()["kind"]).known:
            members = [
                cohort[cohort < canaries_each]
                for cohort in map(plan.sample_cohort, range(rounds))
            ]
            # Who is in no round is known, and there is nothing to guess.
            taking_part = np.isin(np.arange(canaries_each), np.concatenate(members))
        correlated = sum_.noise.combines(0) is not None
        # What the noise of two rounds has in common is looked for where it is not one
        # stream's draw a round.
        if members is not None and (correlated or sum_.noise.by_dimension):
            scores = Decorrelated(net, sum_.name, members)
        elif correlated and once:
            scores = SecretRounds(net, sum_.name, rounds)
        else:
            scores = RoundByRound(net, sum_.name, members=members, once=once)
        query = run.task.ways * run.clients.query_per_class
        source = ClientSource(net, units[0], each=query if sum_.unit == "record" else 1)
    run_rounds(
        run,
        source,
        scores,
        rounds=rounds,
        first=threshold,
        multipliers=multipliers,
        plan=plan,
        progress=progress,
    )
    if isinstance(scores, Decorrelated):
        sent = [
            np.delete(plan.sample_cohort(index), absent)
            for index, absent in enumerate(scores.absent)
        ]
        taking_part = np.isin(np.arange(canaries_each), np.concatenate(sent))
    return CanaryExperiment(
        holders=holders,
        coins=coins[:, taking_part].ravel(),
        scores=scores.scores[:, taking_part].ravel(),
        releases=lines_of(sum_, scores.all_lines),
        ideal=lambda generator: scores.ideal(coins, generator)[:, taking_part].ravel(),
    )
