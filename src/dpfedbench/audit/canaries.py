"""Canaries in the code that ran: drawn contributions pass through a run's own rounds.

The audit examines the release mechanism: participation, clipping, private sum, noise
stream, denominator, threshold rule and ledger are those of `training.rounds.Rounds`,
called as in training. Only the gradients are replaced. There are `ORDINARY` coordinates
with drawn gradients, and one coordinate for each canary. A canary is a separate unit
(client or record). A secret coin decides its contribution: far above any threshold
along its coordinate, or zero (zero-out adjacency). All randomness, including the noise,
comes from a seed made for the audit. The audit therefore measures the mechanism, and
not what the published seed of the run would reveal.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
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
from dpfedbench.errors import BenchError
from dpfedbench.models.choose import Choice
from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpfedbench.run import Run
from dpfedbench.training.clients import Clients
from dpfedbench.training.distributed import Stream
from dpfedbench.training.federation import Federation
from dpfedbench.training.rounds import Rounds
from dpsum.accounting.analyses import find
from dpsum.audit.ideal import Drawn
from dpsum.clipping import Extra
from dpsum.ledger import Release
from dpsum.mechanism import Observer
from dpsum.progress import Progress
from dpsum.randomness import stream
from dpsum.sums import SumSpec

_STEPS = 1000
"""Number of lots of all clients up to which more than one client is audited."""

_WORK = 12_000_000
"""Canaries times lots up to which a client has all requested canaries.

Beyond it a client has at least a thousand.
"""

_CHUNK = 256


# Replacements for the clients, or for their data


class BudgetSpent(BenchError):
    """A run's budget has no room for the next round of an audit."""


class ClientSource(Clients):
    """Clients with given contributions, for a sum that the server takes.

    If a client sends several messages, all are equal.
    """

    def __init__(
        self, net: Coordinates, units: Units, *, contributions_per_client: int = 1
    ) -> None:
        self.net = net
        self.units = units
        self.contributions_per_client = contributions_per_client
        self.messages = 1

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Return the clients' contributions, whatever the model and the round are."""
        for start in range(0, len(cohort), _CHUNK):
            ids = cohort[start : start + _CHUNK]
            net = self.net
            width = net.shared_dimension
            if net.groups > 1:
                width = net.ordinary + net.reserved
            out = np.zeros(
                (len(ids) * self.contributions_per_client, width), np.float32
            )
            self.units.fill(
                ids, out[:: self.contributions_per_client]
            )  # if a client makes several, the first one counts
            rows = torch.from_numpy(net.spread(out))
            messages = (
                rows if self.messages == 1 else rows.expand(self.messages, -1, -1)
            )
            yield messages, np.zeros(len(ids))


class RecordSource:
    """Records with given gradients, for sums that clients take over their own records.

    An image is the number of a record. The source replaces both the clients' data and
    the computation of gradients, in one thread.
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

    def add_record_gradients(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        total: Any,
        *,
        block: str = "",
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add the records' gradients, whatever the model is.

        See `models.gradients.Gradients.add_record_gradients`.
        """
        norms = np.empty(len(x))
        for start in range(0, len(x), _CHUNK):
            ids = x[start : start + _CHUNK]
            self.holders[y[0]].fill(ids, self._room[: len(ids)])
            norms[start : start + _CHUNK] = total.add(
                torch.from_numpy(self._room[: len(ids)])
            )
        return np.zeros(len(x)), norms


def gradients_of(source: Any) -> Choice:
    """Return a choice whose gradients come from a source instead of a model."""
    return Choice("audit", lambda: source, "cpu")


def audit_seed(run: Run, *indices: int) -> int:
    """Return a seed for the audit, derived from the run's seed and identity."""
    return int(stream(run.seed, f"audit/{run.key}", *indices).integers(2**62))


def draw_coins(seed: int, *shape: int) -> np.ndarray:
    """Return the secret coins of an audit's canaries, bool [shape]."""
    return stream(seed, "audit-coins").integers(2, size=shape).astype(bool)


def run_rounds(
    run: Run,
    source: ClientSource | RecordSource,
    observer: Observer,
    *,
    rounds: int,
    first: float | None = None,
    multipliers: Sequence[float] = (),
    plan: Any = None,
    progress: Progress | None = None,
) -> None:
    """Run rounds with a source's contributions, and show releases to an observer.

    Args:
        run: the run, with the audit's seed.
        source: replacement for the clients, or for their data.
        observer: called with each release.
        rounds: number of rounds.
        first: the first threshold, if the run determines it from its data.
        multipliers: z of each round, for noise that follows a public loss, which an
            audit does not have.
        plan: replacement for the run's participation plan.
        progress: progress callback.
    """
    if isinstance(source, ClientSource):
        source.messages = 1 + len(run.further_sums)
    training = Rounds(
        run,
        Federation(net=source.net, held=source, gradients=gradients_of(source)),
        ledger=collections.deque(maxlen=0),  # the observer gets each line
        observer=observer,
        plan=plan,
        first_threshold=first,
        shared=SharedCoordinates(source.net, source.net.shared_mask()),
        clients=source if isinstance(source, Clients) else None,
    )
    following = [
        spec.name
        for spec in training.composition.budgeted
        if spec.private_noise.follows_loss
    ]
    for index in range(rounds):
        if not training.composition.allows(index + 1):
            raise BudgetSpent(f"the budget ends before round {index + 1} of {rounds}")
        for name in following if multipliers else ():
            plan_of_noise = training.composition.plan_of(name)
            assert plan_of_noise is not None
            plan_of_noise.multipliers[0] = multipliers[index]
        training.round(index)
        if progress is not None:
            progress.step(index + 1, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryExperiment:
    """One run with canaries.

    Attributes:
        coins: bool [m], whether each canary was included.
        scores: float64 [m], see `audit.scores`.
        releases: ledger of the audit's own run.
        holders: number of clients with canaries among their records; 1 if clients are
            canaries.
        ideal: function that draws scores of the same canaries from the ledger alone.
            None: it was not requested.
    """

    holders: int
    coins: np.ndarray
    scores: np.ndarray
    releases: list[Release]
    ideal: Drawn | None = None


def extra_of(sum_: SumSpec, threshold: float) -> Extra | None:
    """Return the release that a private sum's rule makes beside the sum."""
    rule = sum_.private_rule
    return rule.extra(rule.begin(threshold), noise_multiplier=1.0, cohort=1.0)


def lines_of(sum_: SumSpec, releases: Sequence[Release]) -> list[Release]:
    """Return the ledger lines of a sum, and of further releases of its rule."""
    extra = extra_of(sum_, 1.0)
    return [line for line in releases if line.name in (sum_.name, extra and extra.name)]


def _units_of(
    run: Run,
    sum_: SumSpec,
    present: Sequence[np.ndarray],
    counts: Sequence[int],
    *,
    norm: float,
) -> list[Units]:
    """Return the units of each holder: canaries, and `counts` units in total.

    Args:
        run: the run, with the audit's seed.
        sum_: the audited sum.
        present: for each holder, whether each of its canaries is present.
        counts: number of units of each holder.
        norm: median norm of an ordinary unit's gradient.
    """
    units = []
    for holder, row in enumerate(present):
        count = counts[holder]
        positions = np.arange(count)
        if sum_ in run.client_sums:
            positions = run.client_update.record_subset(
                sum_, seed=run.seed, client=holder, records=count
            )
        units.append(
            canary_units(
                count, row, norm=norm, seed=run.seed, holder=holder, places=positions
            )
        )
    return units


def one_run(
    run: Run,
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

    Clients that sum over their own records are alike, and no record is held by two
    clients. A record's privacy depends on its own client's releases alone. So in a long
    run only some clients are audited.

    Args:
        run: the run.
        sum_: the audited sum: the server's, or that of clients that hold records.
        seed: the audit's seed.
        canaries: number of canaries m. For records, it is divided by the clients and
            rounded down, and at most three quarters of a client's records are canaries.
        rounds: number of rounds.
        threshold: the first C of the run. If the run determines it on random data, it
            stands in its ledger.
        records: number of records of a client that takes the sum. If clients differ,
            the number of each client; then all are audited.
        steps: releases of the sum that a client makes in a round.
        multipliers: z of each round, see `run_rounds`.
        inserted: false: no canary is inserted, whatever its coin (a null experiment).
        added: number of clients whose releases the observer sees only as their sum, see
            `scores.RoundByRound`.
        dimension: number of coordinates, if the mechanism depends on it. None: as few
            as the canaries need.
        groups: number of coordinate groups that the sum clips separately.
        progress: called after each round.
    """
    run = run.replace(seed=seed)
    own_sums = run.client_sums
    clients = run.clients.count
    is_client_sum = sum_ in own_sums
    holders = 1
    canaries_each = canaries
    sizes = [records] * clients if isinstance(records, int) else records
    if is_client_sum:
        lots = rounds * steps
        holders = 1 if added else min(clients, max(1, _STEPS // lots))
        if not isinstance(records, int):
            holders = len(records)
        canaries_each = min(
            min(canaries, max(1000, _WORK // lots)) // holders, 3 * min(sizes) // 4
        )
    coins = draw_coins(seed, holders, canaries_each)
    net = Coordinates(
        ordinary=ORDINARY,
        reserved=canaries_each,
        dimension=dimension,
        groups=groups,
        head=0 if run.shares_all else HEAD,
    )
    plan = run.participation.plan(clients=clients, seed=seed)
    # A record is in one part of its client's records, and the sum is over one part.
    parts = len({own_sum.part for own_sum in own_sums})
    counts = [size * parts for size in sizes] if is_client_sum else [clients]
    present = list(coins & inserted)
    if added:
        present += [np.zeros(0, bool)] * (clients - 1)
    units = _units_of(run, sum_, present, counts, norm=threshold)
    taking_part: np.ndarray | slice = slice(None)
    source: ClientSource | RecordSource
    scores: CanaryScores
    if is_client_sum:
        source = RecordSource(net, units)
        scores = RoundByRound(net, sum_.name, holders, added=added)
    else:
        members = None
        once = run.participation.once
        if find(sum_.private_noise.mechanism, plan.describe()["kind"]).known:
            members = [
                cohort[cohort < canaries_each]
                for cohort in map(plan.sample_cohort, range(rounds))
            ]
            # The observer knows which clients are in no round, so there is nothing to
            # guess.
            taking_part = np.isin(np.arange(canaries_each), np.concatenate(members))
        correlated = sum_.private_noise.combines(0) is not None
        # If the noise of a round is not one fresh draw of one stream, estimate what
        # rounds have in common.
        if members is not None and (correlated or sum_.private_noise.by_dimension):
            scores = Decorrelated(net, sum_.name, members)
        elif correlated and once:
            scores = SecretRounds(net, sum_.name, rounds)
        else:
            scores = RoundByRound(net, sum_.name, members=members, once=once)
        query = run.task.ways * run.clients.query_per_class
        source = ClientSource(
            net,
            units[0],
            contributions_per_client=query if sum_.unit == "record" else 1,
        )
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
