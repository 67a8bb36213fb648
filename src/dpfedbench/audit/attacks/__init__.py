"""Attacks on clipping rules that are not private, one module each.

They are modules of this package or of a plugin. One run with many canaries scores each
canary's own releases. A leak from one round into the next, such as a threshold set from
raw norms, affects all coordinates at once. Only many short runs can show it: in two
worlds that differ in one unit, without training. Each run gives one score. Clopper and
Pearson bound the error rates of one threshold on the scores. The score is the spread of
a later release in coordinates in which no unit has a gradient. That spread is the noise
alone: z C, or z C divided by the denominator.

The leak depends on the rule. A module names the rule's class as `RULE`. Its `score(run,
rule, records=..., first=...)` makes the two worlds in which the leak is most visible
(`Score`). It raises `BenchError` if the attack does not fit the run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from dpfedbench import plugins
from dpfedbench.audit.canaries import BudgetSpent, Coordinates, audit_seed
from dpfedbench.config.kinds import modules_in
from dpfedbench.errors import BenchError
from dpfedbench.run import Run
from dpsum.audit.bounds import Bound, clopper_pearson, most_of
from dpsum.clipping import ClippingRule
from dpsum.ledger import Release
from dpsum.mechanism import Outcome
from dpsum.progress import Progress
from dpsum.randomness import stream

PROBES = 200
"""Number of coordinates without gradients.

They determine the noise's deviation to one part in sqrt(2 x 200) = 20.
"""

_CHOOSING = 0.2
"""Share of the runs on which the threshold is chosen."""

_NAME = "Clopper-Pearson over many runs"
_ASSUMES = "runs are independent"

Score = Callable[[bool, int], Sequence[float]]
"""Function from (unit is present, seed) to the scores of the runs with that seed.

The runs are independent.
"""


def score_of(run: Run, rule: ClippingRule, *, records: int, first: float) -> Score:
    """Return the attack on a run's clipping rule.

    Args:
        run: the run.
        rule: the rule.
        records: number of records over which each client sums.
        first: the first threshold.

    Raises:
        BenchError: there is no attack on the rule, or it does not fit the run.
    """
    for module in [*modules_in(__name__), *plugins.modules()]:
        attacked = getattr(module, "RULE", None)
        if isinstance(attacked, type) and isinstance(rule, attacked):
            score: Score = module.score(run, rule, records=records, first=first)
            return score
    raise BenchError(
        f"{type(rule).__name__} is not private, and no attack is defined for it: add"
        " a module with RULE and score to audit/attacks or to a plugin"
    )


def leak_of(
    run: Run,
    rule: ClippingRule,
    *,
    records: int,
    first: float,
    delta: float,
    confidence: float,
    runs: int,
) -> Bound:
    """Return the many-run audit of a rule that is not private.

    A run whose budget ends before the rounds that the attack needs has no such audit.
    See `score_of` and `many_runs`.
    """
    try:
        score = score_of(run, rule, records=records, first=first)
    except BenchError as error:
        return _no_bound(str(error))
    try:
        return many_runs(score, run, runs=runs, delta=delta, confidence=confidence)
    except BudgetSpent as error:
        return _no_bound(f"the attack needs more rounds than the run has: {error}")


def _no_bound(reason: str) -> Bound:
    return Bound(
        name=_NAME, epsilon=math.nan, assumes=_ASSUMES, numbers={}, reason=reason
    )


class Spread:
    """Observer that collects the log of the spread of the noise, round by round.

    It does so for each client, or for the server.
    """

    def __init__(self) -> None:
        self.net = Coordinates(ordinary=1, reserved=PROBES)
        self.rounds = list[np.ndarray]()

    def __call__(self, line: Release, outcomes: Sequence[Outcome]) -> None:
        """Record a round's first release as released, including its denominator."""
        if line.round < len(self.rounds):
            return
        noise = np.stack([mean for _, mean in outcomes])[:, self.net.ordinary :]
        with np.errstate(divide="ignore"):
            self.rounds.append(np.log(np.sqrt((noise**2).mean(axis=1))))


def many_runs(
    score: Score,
    run: Run,
    *,
    runs: int,
    delta: float,
    confidence: float,
) -> Bound:
    """Return Clopper and Pearson's bound for the two worlds of an attack.

    The bound uses `runs` runs in each world. A quarter as many further runs choose the
    threshold.

    Args:
        score: the attack.
        run: the run.
        runs: number of runs in each world.
        delta: delta of the bound.
        confidence: confidence of the bound.
    """
    needed_runs = math.ceil(runs / (1 - _CHOOSING))
    name = f"audit {run.folder}, many runs"
    progress = Progress(name, 2 * needed_runs, unit="runs")
    scores: list[list[float]] = [[], []]
    attempts = 0
    while min(map(len, scores)) < needed_runs:
        before = sum(map(len, scores))
        for world in (0, 1):
            scores[world] += score(bool(world), audit_seed(run, world, attempts))
        attempts += 1
        done = sum(map(len, scores))
        progress.step(min(done, 2 * needed_runs), done - before)
    bound = clopper_pearson(
        np.array(scores[1][:needed_runs]),
        np.array(scores[0][:needed_runs]),
        delta=delta,
        confidence=confidence,
        generator=stream(run.seed, f"audit-split/{run.key}"),
        choosing=_CHOOSING,
    )
    # A rule that is not private has no trade-off curve: an ideal attacker is always
    # right.
    sides = (bound.numbers["trials"], bound.numbers["nulls"])
    return dataclasses.replace(
        bound,
        name=_NAME,
        assumes=_ASSUMES,
        ideal=most_of(*sides, delta=delta, confidence=confidence),
    )
