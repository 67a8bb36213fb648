"""Attack on a percentile of raw norms, with blocks that the observer knows.

Norms have two modes, far below and just below the first threshold. The number of high
norms is chosen such that the percentile lies on the upper mode if one client of the
first round is present, and on the lower mode if it is absent. The next threshold
depends on it, and the noise of the release after the window shows the threshold.
"""

from __future__ import annotations

import numpy as np

from dpfedbench.audit.attacks import Score, Spread
from dpfedbench.audit.canaries import ClientSource, Units, run_rounds
from dpfedbench.errors import BenchError
from dpfedbench.run import Run
from dpsum.accounting.analyses import find
from dpsum.clipping import PercentileOfRawNorms

RULE = PercentileOfRawNorms


def score(run: Run, rule: PercentileOfRawNorms, *, records: int, first: float) -> Score:
    """Return one score per run: the spread of the noise after the window.

    Raises:
        BenchError: the plan's blocks are secret, or there are too few rounds to fill
            the window and observe the next release.
    """
    noise = run.server_sum.private_noise
    participation = run.participation
    rounds = rule.window + 1
    kind = participation.plan(clients=run.clients.count, seed=run.seed).describe()[
        "kind"
    ]
    if not find(noise.mechanism, kind).known or participation.rounds < rounds:
        raise BenchError(
            f"the attack on the percentile needs one-pass blocks and {rounds} rounds,"
            f" not {kind} and {participation.rounds}"
        )
    values = rule.window * participation.cohort
    # numpy's percentile lies between two positions of the sorted values. Without the
    # unit, one position moves from the upper mode to the lower: choose the nearer of
    # the two.
    lower = min(round(rule.percentile / 100 * (values - 1)), values - 1)
    high = values - 1 - lower

    def score(present: bool, seed: int) -> list[float]:
        drawn = run.replace(seed=seed)
        plan = participation.plan(clients=run.clients.count, seed=seed)
        early = np.concatenate(
            [plan.sample_cohort(index) for index in range(rule.window)]
        )
        norms = np.full(run.clients.count, 0.02 * first)
        norms[early[1 : 1 + high]] = 0.9 * first
        norms[early[0]] = 0.9 * first * present
        spread = Spread()
        source = ClientSource(spread.net, Units.without_canaries(norms[:, None]))
        run_rounds(drawn, source, spread, rounds=rounds, first=first, plan=plan)
        return [float(spread.rounds[-1][0])]

    return score
