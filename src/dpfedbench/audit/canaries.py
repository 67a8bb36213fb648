"""Canaries in the code that ran: drawn contributions go through a run's own rounds, and its releases are scored.

What is audited is the release mechanism: participation, clipping, private sum, noise stream, denominator, threshold
rule and ledger are those of `federation.server_sum` or `federation.client_sums`, called as training calls them. Only
the gradients are replaced. There are `ORDINARY` coordinates with drawn gradients, and one coordinate for each canary.
A canary is a unit (client or record) of its own; by a secret coin its contribution is far above any threshold along
its coordinate, or zero (zero-out adjacency). All randomness, the noise too, is of a seed made for the audit: what is
measured is the mechanism, not what the published seed of the run would tell.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfedbench.accounting.budgets import DecayingBudget
from dpfedbench.config import RunConfig
from dpfedbench.data.partition import TaskBatch
from dpfedbench.federation.client_sums import ClientSums
from dpfedbench.federation.composition import Composition, Maml, Reptile
from dpfedbench.federation.progress import Progress
from dpfedbench.federation.record_tasks import RecordTaskClients
from dpfedbench.federation.rounds import Observer
from dpfedbench.federation.server_sum import COUNT_RELEASE, ServerSum
from dpfedbench.methods import METHODS
from dpfedbench.models.gradients import Found as Measured
from dpfedbench.models.net import Weights
from dpfedbench.privacy.ledger import Ledger, Release
from dpfedbench.privacy.private_sum import PlainSum, PrivateSum
from dpfedbench.randomness import stream

ORDINARY = 50
"""Coordinates of units that are not canaries."""

_STEPS = 1000
"""Lots, of all clients together, up to which more than one client is audited."""

_WORK = 12_000_000
"""Canaries times lots up to which a client has all canaries that are asked for; beyond it at least a thousand."""

LARGE = 1e30
"""A canary's norm before clipping: above every threshold that a rule may set, within single precision."""

_CHUNK = 256


class Coordinates:
    """In place of a network: so many weights, all zero at the start.

    Args:
        ordinary: coordinates of ordinary gradients.
        reserved: coordinates without any but canaries'.
    """

    def __init__(self, *, ordinary: int, reserved: int) -> None:
        self.ordinary, self.reserved = ordinary, reserved

    @property
    def dimension(self) -> int:
        """Both together."""
        return self.ordinary + self.reserved

    def initial(self, generator: np.random.Generator) -> np.ndarray:
        """Zeros, float32 [d]."""
        return np.zeros(self.dimension, np.float32)


def _nothing(records: int) -> Measured:
    """Where no model is measured."""
    return Measured(np.zeros(records), np.zeros(records), np.ones(records))


@dataclasses.dataclass(frozen=True)
class Units:
    """The contributions of one holder's units: the clients of a federation, or the records of one client.

    Attributes:
        place: int64 [units], the reserved coordinate of a canary; -1 for an ordinary unit.
        size: float32 [units], what a canary has there (0 for one that was left out).
        gradients: float32 [units, ordinary], zero for canaries.
    """

    place: np.ndarray
    size: np.ndarray
    gradients: np.ndarray

    def fill(self, ids: np.ndarray, out: np.ndarray) -> None:
        """Write the contributions of these units to float32 [n, d]."""
        ordinary = self.gradients.shape[1]
        out[:, :ordinary] = self.gradients[ids]
        out[:, ordinary:] = 0
        canaries = np.flatnonzero(self.place[ids] >= 0)
        out[canaries, ordinary + self.place[ids[canaries]]] = self.size[ids[canaries]]


def canary_units(
    units: int, canaries: int, coins: np.ndarray, *, norm: float, ordinary: int, seed: int, holder: int
) -> Units:
    """Canaries first, then ordinary units with gradients in random directions, their norms spread around `norm`.

    Log-normal, a factor e to each side in one deviation: about as wide as clients' norms are in training.
    """
    place = np.full(units, -1)
    place[:canaries] = np.arange(canaries)
    size = np.zeros(units, np.float32)
    size[:canaries] = np.where(coins, LARGE, 0.0)
    rng = stream(seed, "audit-gradients", holder)
    gradients = np.zeros((units, ordinary), np.float32)
    drawn = rng.standard_normal((units - canaries, ordinary))
    drawn *= norm * np.exp(rng.standard_normal((units - canaries, 1))) / np.linalg.norm(drawn, axis=1, keepdims=True)
    gradients[canaries:] = drawn
    return Units(place, size, gradients)


class ClientSource:
    """Clients with given contributions, for `ServerSum`; there is nothing to measure a model on."""

    columns: tuple[str, ...] = ()

    def __init__(self, net: Weights, units: Units, *, each: int = 1) -> None:
        self.net, self.units, self.each = net, units, each

    def stream(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Iterator[tuple[torch.Tensor, np.ndarray, np.ndarray]]:
        """Their contributions, whatever the model and the round are."""
        for start in range(0, len(cohort), _CHUNK):
            ids = cohort[start : start + _CHUNK]
            out = np.zeros((len(ids) * self.each, self.net.dimension), np.float32)
            self.units.fill(ids, out[:: self.each])  # of a client that makes several, the first counts
            yield torch.from_numpy(out), np.zeros(len(ids)), np.zeros(len(ids))

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Nothing."""
        return {}

    def test(self, theta: np.ndarray) -> dict[str, float]:
        """Nothing."""
        return {}


class RecordSource:
    """Clients whose records have given contributions, for `ClientSums`: an image is a record's number."""

    def __init__(self, net: Weights, holders: Sequence[Units]) -> None:
        self.net, self.holders = net, holders
        self._room = np.empty((_CHUNK, net.dimension), np.float32)
        self.images = [np.arange(len(units.place)) for units in holders]
        self.labels = [np.full(len(units.place), client) for client, units in enumerate(holders)]

    def worker(self) -> RecordSource:
        """Another of the same clients, with room of its own for contributions."""
        return RecordSource(self.net, self.holders)

    def add_each(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, total: PlainSum | PrivateSum
    ) -> tuple[Measured, np.ndarray]:
        """Add the records' contributions, whatever the model is, as `Gradients.add_each` adds gradients."""
        norms = np.empty(len(x))
        for start in range(0, len(x), _CHUNK):
            ids = x[start : start + _CHUNK]
            self.holders[y[0]].fill(ids, self._room[: len(ids)])
            norms[start : start + _CHUNK] = total.add(torch.from_numpy(self._room[: len(ids)]))
        return _nothing(len(x)), norms


class TaskSource:
    """Few-shot clients whose examples are all canaries, for `RecordTaskClients`: an image is an example's number."""

    def __init__(self, net: Coordinates, support: int, present: np.ndarray) -> None:
        self.net, self._support, self._present = net, support, present
        self.read = np.empty(0, np.int64)  # examples whose gradients were taken last

    def gather(self, ids: np.ndarray) -> TaskBatch:
        """Numbers for images, the client's own for labels."""
        numbers = np.tile(np.arange(self._present.shape[1]), (len(ids), 1))
        labels = np.repeat(np.asarray(ids)[:, None], numbers.shape[1], axis=1)
        parts = [(values[:, : self._support], values[:, self._support :]) for values in (numbers, labels)]
        return TaskBatch(support_x=parts[0][0], support_y=parts[1][0], query_x=parts[0][1], query_y=parts[1][1])

    def passes(self) -> TaskSource:
        """Itself: an audit has one thread."""
        return self

    def each(self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> Measured:
        """The examples' contributions, whatever the model is."""
        self.read = x
        out[:] = 0
        out[np.arange(len(x)), self.net.ordinary + x] = LARGE * self._present[y[0], x]
        return _nothing(len(x))

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Nothing."""
        return {}


def audit_seed(config: RunConfig, *indices: int) -> int:
    """A seed of the audit's own, made from the run's seed and identity."""
    return int(stream(config.seed, f"audit/{config.key}", *indices).integers(2**62))


def run_rounds(
    config: RunConfig,
    source: ClientSource | RecordSource,
    observer: Observer,
    *,
    rounds: int,
    multipliers: Sequence[float] = (),
    parts: Composition | None = None,
    progress: Progress | None = None,
) -> None:
    """Let a run's own rounds take place over a source's contributions, and show an observer the releases.

    Args:
        config: the run, with the audit's seed.
        source: in place of the clients' data.
        observer: sees each release.
        rounds: how many.
        multipliers: z of each round, where it follows a public loss that an audit does not have.
        parts: in place of the method's composition.
        progress: told of each round.
    """
    parts = METHODS[config.method].compose(config) if parts is None else parts
    # The observer is shown each line as it is written; a file of them would be made and removed thousands of times.
    ledger = Ledger(Path(os.devnull))
    place: Any = ClientSums if config.by_record else ServerSum
    mechanism: ServerSum | ClientSums = place(config, parts, ledger=ledger, source=source, observer=observer)
    for index in range(rounds):
        if multipliers and isinstance(mechanism.budget, DecayingBudget):
            mechanism.budget.noise_multiplier = multipliers[index]
        mechanism.round(index)
        if progress is not None:
            progress.step(index + 1, 1)


class Scores:
    """What an observer makes of the releases: how likely each canary is in them, against that it is in none.

    The statistic is the likelihood ratio of the sampler that the ledger names, at the noise that it states:

    - one-pass: the release of the canary's round, which the observer knows from the blocks;
    - balls-and-bins: the mean over rounds of the ratios, since the round is secret and each equally likely;
    - Poisson cohorts and lots: the product over rounds of 1 - q + q x ratio.

    `sums` are the plain sums of the canary's coordinate over the rounds in which it may be (over C), whose shift is
    one and whose noise is Gaussian.

    Args:
        net: which coordinates are reserved.
        holders: 1 for clients, or how many clients have canaries among their records.
        rounds_of: for one pass, the canaries' rounds, int64 [canaries]; else None.
        hidden: for the release of clipped norms: mean and variance of what others put in it, in units of C.
    """

    def __init__(
        self,
        net: Coordinates,
        *,
        holders: int = 1,
        rounds_of: np.ndarray | None = None,
        hidden: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._ordinary, self._rounds_of, self._hidden = net.ordinary, rounds_of, hidden
        self.scores = np.zeros((holders, net.reserved))
        self.sums = np.zeros((holders, net.reserved))
        self.seen: list[Release] = []

    def __call__(self, written: Sequence[Release], values: Sequence[torch.Tensor]) -> None:
        """Take note of a round's releases."""
        self.seen += written
        first = written[0]
        x = self._scaled(first, values[0].numpy().reshape(len(self.scores), -1)[:, self._ordinary :])
        ratio = (2 * x - 1) / (2 * first.noise_multiplier**2)
        for entry, value in zip(written[1:], values[1:], strict=True):
            if entry.name == COUNT_RELEASE:
                # Left out: a weaker attack, so still a lower bound. What others put in it would have to be guessed,
                # and at its noise of L/20 it says far less of one client than the gradients' release.
                continue
            mean, variance = self._hidden
            y = self._scaled(entry, value.numpy().reshape(-1, 1)) - mean
            ratio = ratio + (2 * y - 1) / (2 * (entry.noise_multiplier**2 + variance))
        kind, rate = first.sampler["kind"], first.sampler["rate"]
        if kind == "one-pass":
            assert self._rounds_of is not None
            here = self._rounds_of == first.round
            self.scores[:, here], self.sums[:, here] = ratio[:, here], x[:, here]
            return
        self.sums += x
        if kind == "balls-and-bins":
            last = self.scores if first.round else np.full_like(self.scores, -np.inf)
            self.scores = np.logaddexp(last, ratio)
        else:
            here = np.logaddexp(np.log1p(-rate), np.log(rate) + ratio) if rate < 1 else ratio
            self.scores += here

    @staticmethod
    def _scaled(entry: Release, value: np.ndarray) -> np.ndarray:
        """A release in units of C: the observer knows the denominator and the thresholds."""
        return np.asarray(value * entry.denominator / np.atleast_1d(entry.threshold)[:, None])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """A one-run experiment.

    Attributes:
        coins: bool [m], whether each canary was in.
        scores, sums: float64 [m], see `Scores`.
        releases: the ledger of the audit's own run.
        holders: clients that had canaries among their records; 1 where clients are canaries.
    """

    holders: int
    coins: np.ndarray
    scores: np.ndarray
    sums: np.ndarray
    releases: list[Release]


def one_run(
    config: RunConfig,
    *,
    seed: int,
    canaries: int,
    rounds: int,
    threshold: float,
    records: int = 0,
    multipliers: Sequence[float] = (),
    inserted: bool = True,
    progress: Progress | None = None,
) -> Found:
    """Run the mechanism once with canaries.

    Clients that sum over their own records are alike, and no record is at two of them, so that of a long run only
    some are audited: a record's privacy is that of its own client's releases.

    Args:
        config: the run.
        seed: the audit's.
        canaries: m; of records, as many for each client (rounded down), and at most three quarters of them.
        rounds: how many.
        threshold: the first C of the run, which a run that finds it on random data has in its ledger.
        records: those that a client holds, where the unit is the record.
        multipliers: z of each round, see `run_rounds`.
        inserted: false: no canary is ever inserted, whatever its coin (a null).
        progress: told of each round.
    """
    clipping = config.clipping
    assert clipping is not None
    config = dataclasses.replace(config, seed=seed)
    holders = 1
    if config.by_record:
        lots = rounds * config.client_update.inner_steps
        holders = min(config.clients.count, max(1, _STEPS // lots))
        canaries = min(canaries, max(1000, _WORK // lots))
        config = dataclasses.replace(config, clients=dataclasses.replace(config.clients, count=holders))
    parts = METHODS[config.method].compose(config)
    if clipping.threshold is None:
        parts = parts.starting_at(threshold)
    rounds_of: np.ndarray | None = None
    taking_part: np.ndarray | slice = slice(None)
    each = min(canaries // holders, 3 * records // 4) if config.by_record else canaries
    coins = stream(seed, "audit-coins").integers(2, size=(holders, each)).astype(bool)
    present = coins if inserted else np.zeros_like(coins)
    if config.by_record:
        # Where the norms are released too, other records would hide a canary's: the worst case has none.
        norm = 0.0 if clipping.rule == "noised-mean-norm" else threshold
        net = Coordinates(ordinary=ORDINARY, reserved=each)
        units = [
            canary_units(records, each, row, norm=norm, ordinary=ORDINARY, seed=seed, holder=holder)
            for holder, row in enumerate(present)
        ]
        q = config.participation.cohort / records
        scores = Scores(net, holders=holders, hidden=(q * each / 2, q * each / 2 * (1 - q / 2)))
        source: ClientSource | RecordSource = RecordSource(net, units)
    else:
        net = Coordinates(ordinary=ORDINARY, reserved=each)
        clients = canary_units(
            config.clients.count, each, present[0], norm=threshold, ordinary=ORDINARY, seed=seed, holder=0
        )
        if config.participation.kind == "one-pass":
            assert parts.participation is not None
            rounds_of = np.full(config.clients.count, -1)
            for index in range(rounds):
                rounds_of[parts.participation.cohort(index)] = index
            rounds_of = rounds_of[:each]
            # Who is in no round is known, and there is nothing to guess.
            taking_part = rounds_of >= 0
        scores = Scores(net, rounds_of=rounds_of)
        by_server = config.local is not None and config.local.query == "server"
        source = ClientSource(net, clients, each=config.task.ways * config.clients.query_per_class if by_server else 1)
    run_rounds(config, source, scores, rounds=rounds, multipliers=multipliers, parts=parts, progress=progress)
    return Found(
        holders=holders,
        coins=coins[:, taking_part].ravel(),
        scores=scores.scores[:, taking_part].ravel(),
        sums=scores.sums[:, taking_part].ravel(),
        releases=scores.seen,
    )


def one_own_run(config: RunConfig, *, seed: int, canaries: int, inserted: bool = True) -> Found:
    """Let few-shot clients make their own releases once, every example a canary; nothing else is in them.

    Clients are alike and no canary is at two of them, so that each needs one round only, and there may be more of them
    than the run has.

    Args:
        config: the run.
        seed: the audit's.
        canaries: m, rounded down to whole clients.
        inserted: false: no canary is ever inserted, whatever its coin (a null).
    """
    ways, shape = config.task.ways, config.clients
    support, examples = ways * shape.support_per_class, ways * (shape.support_per_class + shape.query_per_class)
    holders = max(1, canaries // examples)
    config = dataclasses.replace(config, seed=seed)
    update = METHODS[config.method].compose(config).update
    assert isinstance(update, Maml | Reptile)
    coins = stream(seed, "audit-coins").integers(2, size=(holders, examples)).astype(bool)
    net = Coordinates(ordinary=1, reserved=examples)
    source = TaskSource(net, support, coins if inserted else np.zeros_like(coins))
    scores, sums, seen = np.zeros(coins.shape), np.zeros(coins.shape), np.zeros(coins.shape, bool)

    def observe(name: str, client: int, step: int, made: PrivateSum, released: torch.Tensor) -> None:
        own = source.read
        x = released.numpy()[net.ordinary + own] / made.threshold
        scores[client, own] += (2 * x - 1) / (2 * made.noise_multiplier**2)
        sums[client, own] += x
        seen[client, own] = True

    clients = RecordTaskClients(config, update, config.local, source=source, observer=observe)
    theta = net.initial(stream(seed, "initial-weights"))
    for _ in clients.stream(theta, np.arange(holders), 0):
        pass
    return Found(holders=holders, coins=coins[seen], scores=scores[seen], sums=sums[seen], releases=clients.releases(0))
