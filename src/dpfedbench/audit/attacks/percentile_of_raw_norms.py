"""The attack on a percentile of raw norms, on blocks that the observer knows.

Norms have two modes, far below and just below the first threshold, so many high ones
that the percentile lies on the upper mode if one client of the first round is there,
and on the lower if it is not. The next threshold shows it, and the noise of the release
after the window shows the threshold.
"""

from __future__ import annotations

import numpy as np

from dpfedbench.audit.attacks import Score, Spread
from dpfedbench.audit.canaries import ClientSource, Units, run_rounds
from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpsum.accounting.analyses import find
from dpsum.clipping import PercentileOfRawNorms

RULE = PercentileOfRawNorms


def score(
    run: Method, rule: PercentileOfRawNorms, *, records: int, first: float
) -> Score:
    """One score a run: the spread of the noise after the window.

    Raises:
        BenchError: a plan whose blocks are secret, or too few rounds to fill the window
            and see the next release.
    """
    noise = run.server_sum.noise
    participation = run.participation
    rounds = rule.window + 1
    assert noise is not None
    kind = participation.plan(clients=run.clients.count, seed=run.seed).describe()[
        "kind"
    ]
    if not find(noise.mechanism, kind).known or participation.rounds < rounds:
        raise BenchError(
            f"the attack on the percentile needs one-pass blocks and {rounds} rounds,"
            f" not {kind} and {participation.rounds}"
        )
    values = rule.window * participation.cohort
    # numpy's percentile lies between two places of the sorted values. One unit less
    # moves one place from the upper mode to the lower: let it be the nearer of the two.
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
