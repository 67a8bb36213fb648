"""Mechanism audits: many short runs of a run's own rounds on two worlds that differ in one unit, without training.

One run with many canaries looks at each canary's own releases. A leak from one round into the next, such as a
threshold set from raw norms, is in all coordinates at once, and takes many runs to be seen: each gives one score, and
the rates of one threshold on the scores are bounded by Clopper and Pearson. The score is the spread of a later
release in coordinates in which nobody has a gradient: that is the noise alone, z C, or z C over whatever it is
divided by.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from dpfedbench.audit.bounds import Bound, clopper_pearson
from dpfedbench.audit.canaries import (
    LARGE,
    ClientSource,
    Coordinates,
    RecordSource,
    Units,
    audit_seed,
    run_rounds,
)
from dpfedbench.config import RunConfig
from dpfedbench.errors import BenchError
from dpfedbench.federation.participation import Participation
from dpfedbench.federation.progress import Progress
from dpfedbench.methods import METHODS
from dpfedbench.privacy.ledger import Release
from dpfedbench.randomness import stream

PROBES = 200
"""Coordinates without gradients: the noise's deviation is known to one part in sqrt(2 x 200) = 20."""

CHOOSING = 0.2
"""Share of the runs on which the threshold is chosen."""

_LOTS = 16
"""Rounds of lots that are looked at: what leaks in a part of a run leaks in the whole."""


class Spread:
    """Collects, for each client or for the server, the log of the spread of the noise, round by round."""

    def __init__(self, net: Coordinates) -> None:
        self._ordinary, self.rounds = net.ordinary, list[np.ndarray]()

    def __call__(self, written: Sequence[Release], values: Sequence[torch.Tensor]) -> None:
        """Take note of a round's releases, as they left: whatever they were divided by is in them."""
        noise = np.atleast_2d(values[0].numpy())[:, self._ordinary :]
        with np.errstate(divide="ignore"):
            self.rounds.append(np.log(np.sqrt((noise**2).mean(axis=1))))


class Without(Participation):
    """A plan in which one client never takes part: the world of add-or-remove adjacency.

    Args:
        plan: the plan, whose public numbers stay.
        client: who is absent.
    """

    def __init__(self, plan: Participation, client: int) -> None:
        self.plan, self.client, self.kind, self.size = plan, client, plan.kind, plan.size

    def cohort(self, index: int) -> np.ndarray:
        found = self.plan.cohort(index)
        return found[found != self.client]

    @property
    def denominator(self) -> float:
        return self.plan.denominator

    def describe(self) -> dict:
        return self.plan.describe()


Score = Callable[[bool, int], Sequence[float]]
"""Whether the unit is present, and a seed, to the scores of the independent runs made with that seed."""


def many_runs(
    score: Score, config: RunConfig, *, runs: int, delta: float, confidence: float, progress: bool = False
) -> Bound:
    """Clopper and Pearson's bound on two worlds.

    Args:
        score: makes runs.
        config: the run, for its seed and identity.
        runs: runs a world on which the bound is measured; a quarter as many more choose the threshold.
        delta, confidence: of the bound.
        progress: whether to say how far it is.
    """
    wanted = math.ceil(runs / (1 - CHOOSING))
    shown = Progress(f"audit {config.folder}, many runs", 2 * wanted, unit="runs") if progress else None
    found: list[list[float]] = [[], []]
    made = 0
    while min(map(len, found)) < wanted:
        before = sum(map(len, found))
        for world in (0, 1):
            found[world] += score(bool(world), audit_seed(config, world, made))
        made += 1
        if shown is not None:
            done = sum(map(len, found))
            shown.step(min(done, 2 * wanted), done - before)
    bound = clopper_pearson(
        np.array(found[1][:wanted]), np.array(found[0][:wanted]), delta=delta, confidence=confidence,
        generator=stream(config.seed, f"audit-split/{config.key}"), choosing=CHOOSING,
    )  # fmt: skip
    return dataclasses.replace(bound, name="Clopper-Pearson over many runs", assumes="runs are independent")


def percentile_score(config: RunConfig) -> Score:
    """The attack on a percentile of raw norms, on blocks that the observer knows.

    Norms have two modes, far below and just below the first threshold, so many high ones that the percentile lies on
    the upper mode if one client of the first round is there, and on the lower if it is not. The next threshold shows
    it, and the noise of the release after the window shows the threshold.

    Raises:
        BenchError: a plan whose blocks are secret, or too few rounds to fill the window and see the next release.
    """
    clipping, plan = config.clipping, config.participation
    assert clipping is not None and clipping.threshold is not None
    first = clipping.threshold
    rounds = clipping.window + 1
    if plan.kind != "one-pass" or plan.rounds < rounds:
        raise BenchError(
            f"the attack on the percentile needs one-pass blocks and {rounds} rounds, not {plan.kind} and {plan.rounds}"
        )
    net = Coordinates(ordinary=1, reserved=PROBES)
    values = clipping.window * plan.cohort
    # numpy's percentile lies between two places of the sorted values. One unit less moves one place from the upper
    # mode to the lower: let it be the nearer of the two.
    lower = min(round(clipping.percentile / 100 * (values - 1)), values - 1)
    high = values - 1 - lower

    def score(present: bool, seed: int) -> list[float]:
        drawn = dataclasses.replace(config, seed=seed)
        parts = METHODS[config.method].compose(drawn)
        assert parts.participation is not None
        early = np.concatenate([parts.participation.cohort(index) for index in range(clipping.window)])
        norms = np.full(config.clients.count, 0.02 * first)
        norms[early[1 : 1 + high]] = 0.9 * first
        norms[early[0]] = 0.9 * first * present
        units = Units(np.full(len(norms), -1), np.zeros(len(norms), np.float32), norms[:, None].astype(np.float32))
        seen = Spread(net)
        run_rounds(drawn, ClientSource(net, units), seen, rounds=rounds, parts=parts)
        return [float(seen.rounds[-1][0])]

    return score


def lots_score(config: RunConfig, records: int, first: float) -> Score:
    """The attack on a mean of raw norms: a record with a huge gradient, all others without any.

    Whenever it is in a lot, the client's next threshold is as large as can be. Clients are independent runs.
    """
    clipping = config.clipping
    assert clipping is not None
    net = Coordinates(ordinary=1, reserved=PROBES)
    rounds = min(config.participation.rounds, _LOTS)
    values = clipping if clipping.threshold else dataclasses.replace(clipping, threshold=first)

    def score(present: bool, seed: int) -> list[float]:
        gradients = np.zeros((records, 1), np.float32)
        gradients[0] = LARGE * present
        units = Units(np.full(records, -1), np.zeros(records, np.float32), gradients)
        seen = Spread(net)
        drawn = dataclasses.replace(config, seed=seed, clipping=values)
        run_rounds(drawn, RecordSource(net, [units] * config.clients.count), seen, rounds=rounds)
        return [float(value) for value in np.max(seen.rounds[1:], axis=0)]

    return score


def count_score(
    config: RunConfig, *, plan: Callable[[Participation], Participation] = lambda plan: plan, client: int = 0
) -> Score:
    """The attack on a denominator that counts who came: nobody has a gradient, and one client is there or is not.

    Args:
        config: the run.
        plan: what is made of the plan once the client is or is not in it; itself by default.
        client: whose presence is asked for.
    """
    net = Coordinates(ordinary=1, reserved=PROBES)
    count = config.clients.count
    units = Units(np.full(count, -1), np.zeros(count, np.float32), np.zeros((count, 1), np.float32))

    def score(present: bool, seed: int) -> list[float]:
        drawn = dataclasses.replace(config, seed=seed)
        parts = METHODS[config.method].compose(drawn)
        assert parts.participation is not None
        world = parts.participation if present else Without(parts.participation, client)
        parts = dataclasses.replace(parts, participation=plan(world))
        seen = Spread(net)
        run_rounds(drawn, ClientSource(net, units), seen, rounds=config.participation.rounds, parts=parts)
        # The noise is least where most came.
        return [-float(np.min(seen.rounds))]

    return score


def raw_norm_audit(
    config: RunConfig, *, records: int, first: float, delta: float, confidence: float, runs: int
) -> Bound:
    """The many-run audit of a run whose threshold reads raw norms.

    Args:
        config: the run.
        records: those a client holds, where the unit is the record.
        first: the first threshold.
        delta, confidence: of the bound.
        runs: runs a world on which it is measured.
    """
    try:
        score = lots_score(config, records, first) if config.by_record else percentile_score(config)
    except BenchError as error:
        return Bound(
            name="Clopper-Pearson over many runs", epsilon=math.nan, assumes="runs are independent", found={},
            reason=str(error),
        )  # fmt: skip
    return many_runs(score, config, runs=runs, delta=delta, confidence=confidence, progress=True)
