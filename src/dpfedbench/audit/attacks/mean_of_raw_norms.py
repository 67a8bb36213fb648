"""Attack on a mean of raw norms: one record has a huge gradient, all others have none.

If the record is in a lot, the client's next threshold has its maximum.
"""

from __future__ import annotations

import numpy as np

from dpfedbench.audit.attacks import Score, Spread
from dpfedbench.audit.canaries import BudgetSpent, RecordSource, run_rounds
from dpfedbench.audit.units import LARGE, Units
from dpfedbench.run import Run
from dpsum.clipping import MeanOfRawNorms

RULE = MeanOfRawNorms

_ROUNDS = 16
"""Number of rounds that the attack reads.

A leak in a part of a run is a leak in the whole.
"""


def score(run: Run, rule: MeanOfRawNorms, *, records: int, first: float) -> Score:
    """Return the scores of a run: the widest spread after the first release.

    There is one score for each client, because clients are independent.
    """
    rounds = min(run.participation.rounds, _ROUNDS)

    def score(present: bool, seed: int) -> list[float]:
        gradients = np.zeros((records, 1), np.float32)
        gradients[0] = LARGE * present
        spread = Spread()
        source = RecordSource(
            spread.net, [Units.without_canaries(gradients)] * run.clients.count
        )
        drawn = run.replace(seed=seed)
        try:
            run_rounds(drawn, source, spread, rounds=rounds, first=first)
        except BudgetSpent:
            if len(spread.rounds) < 2:
                raise
        return [float(value) for value in np.max(spread.rounds[1:], axis=0)]

    return score
