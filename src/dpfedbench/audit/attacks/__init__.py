"""Attacks on clipping rules that are not private, one file each, found by place.

A rule that reads raw norms tells of them by its next threshold. How, only the rule says: a module names the rule's
class as `RULE`, and its `score(run, rule, records=..., first=...)` makes the two worlds in which that shows best
(`audit.mechanisms.Score`). It raises `BenchError` where the attack does not fit the run.
"""

from __future__ import annotations

import math
import pkgutil

from dpfedbench.audit.mechanisms import ASSUMES, NAME, Score, many_runs
from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.parts.clipping.rule import ClippingRule
from dpfedbench.settings.discovery import imported
from dpsum.audit.bounds import Bound


def score_of(run: Method, rule: ClippingRule, *, records: int, first: float) -> Score:
    """The attack on a rule of a run, whose first threshold is `first`; of clients that sum over so many records.

    Raises:
        BenchError: there is none, or it does not fit the run.
    """
    for info in pkgutil.iter_modules(__path__):
        module = imported(f"{__name__}.{info.name}")
        if isinstance(rule, module.RULE):
            score: Score = module.score(run, rule, records=records, first=first)
            return score
    raise BenchError(f"{type(rule).__name__} is not private, and no attack on it is known: add one to audit/attacks")


def leak_of(
    run: Method, rule: ClippingRule, *, records: int, first: float, delta: float, confidence: float, runs: int
) -> Bound:
    """The many-run audit of a rule that is not private; see `score_of` and `mechanisms.many_runs`."""
    try:
        score = score_of(run, rule, records=records, first=first)
    except BenchError as error:
        return Bound(name=NAME, epsilon=math.nan, assumes=ASSUMES, found={}, reason=str(error))
    return many_runs(score, run, runs=runs, delta=delta, confidence=confidence, progress=True)
