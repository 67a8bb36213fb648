"""Lower bounds on epsilon from guesses and scores, with confidence and assumptions.

All bounds are one-sided: where a bound's assumptions hold, it exceeds the true epsilon
with probability at most 1 - confidence. A low bound proves nothing.

`one_run_dp` is Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run
(2023), Theorem 5.2. `clopper_pearson` has exact limits of the error rates of one
threshold, chosen on other data. See also `ranks`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import betainc, betainccinv, betaincinv

from dpsum.errors import DpsumError

LARGEST_EPSILON = 1e4
"""Largest value of a bound; larger numbers have no meaning."""

_SLACK = 0.1
"""Loss of a bound that is accepted for a threshold with wider gaps on both sides."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on epsilon.

    Attributes:
        name: name of the method.
        epsilon: the bound at the audit's delta; NaN where there is none.
        assumes: assumptions, besides the experiment, under which the confidence holds.
        numbers: inputs of the computation.
        reason: why there is no bound, or a comment on it; else "".
        ideal: bound that the best attacker on the accounted mechanism would reach with
            as many observations, in half of all audits; NaN where it was not computed.
        chances: approximate probabilities for correct code. "as_little": that the
            attack shows as little; "such_scores": that the scores are as far from the
            ideal attacker's. Empty where they were not computed.
    """

    name: str
    epsilon: float
    assumes: str
    numbers: dict[str, Any]
    reason: str = ""
    ideal: float = math.nan
    chances: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guesses:
    """Guesses of secret coins.

    Attributes:
        coins: number of coins.
        guessed: number of guesses.
        right: number of right guesses.
    """

    coins: int
    guessed: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.guessed <= self.coins or self.coins < 1:
            raise DpsumError(
                f"an audit cannot have {self.right} right of {self.guessed} guesses of"
                f" {self.coins} coins"
            )


def guess(
    scores: np.ndarray, coins: np.ndarray, count: int, *, both: bool = True
) -> Guesses:
    """Guess the coins of the highest scores, and perhaps of the lowest.

    The confidence requires that `count` and `both` do not depend on the scores. Equal
    scores keep their order, which must not depend on the coins.

    Args:
        scores: float [m], higher for present.
        coins: the true coins, bool [m].
        count: number of guesses; with two sides an odd one is dropped.
        both: whether to guess "absent" for as many of the lowest scores as "present"
            for the highest.
    """
    order = np.argsort(scores, kind="stable")
    if both:
        low = count // 2
        high = low
    else:
        low = 0
        high = count
    highest = order[len(order) - high :]
    lowest = order[:low]
    right = int(coins[highest].sum())
    right += int((~coins[lowest]).sum())
    guessed = low + high
    return Guesses(coins=len(coins), guessed=guessed, right=right)


def guess_surest(scores: np.ndarray, coins: np.ndarray, *, secret: bool) -> Guesses:
    """Guess a number of coins that follows from the number of coins alone.

    Few guesses are the surest ones, where a mechanism leaks; with too few, chance hides
    the leak. The number is a tenth of the coins (at least a hundred, if there are as
    many), half of them "absent". Where participation is secret it is a twentieth, none
    of them "absent", since the absence of a canary from a release says little.
    """
    share = 20 if secret else 10
    count = min(max(100, len(coins) // share), len(coins))
    return guess(scores, coins, count, both=not secret)


# One run, (epsilon, delta)


def _chance(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Bound the probability of at least as many right guesses (Theorem 5.2).

    The bound holds under any (epsilon, delta)-DP mechanism.
    """
    m = guesses.coins
    guess_count = guesses.guessed
    right = guesses.right
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(binomial_tail(right - 1, guess_count, rate))
    steps = np.arange(1, right + 1)
    between = binomial_tail(right - steps - 1, guess_count, rate) - tail
    slopes = between / steps
    alpha = float(np.max(slopes, initial=0.0))
    return min(1.0, tail + 2 * m * delta * alpha)


def one_run_dp(guesses: Guesses, *, delta: float, confidence: float) -> Bound:
    """Return the largest epsilon at which the guesses refute (epsilon, delta)-DP."""
    tau = 1 - confidence
    epsilon = 0.0
    reason = ""
    if _chance(guesses, 0.0, delta) > tau:
        reason = "no leak is told from chance"
    else:
        low = 0.0
        high = 1.0
        while _chance(guesses, high, delta) <= tau:
            low = high
            high = 2 * high
        while high - low > 1e-5:
            middle = (low + high) / 2
            if _chance(guesses, middle, delta) <= tau:
                low = middle
            else:
                high = middle
        epsilon = low
    return Bound(
        name="one-run (eps, delta)-DP",
        epsilon=epsilon,
        assumes="nothing of the mechanism",
        numbers={
            "coins": guesses.coins,
            "made": guesses.guessed,
            "right": guesses.right,
        },
        reason=reason,
    )


# Scores


def clopper_pearson(
    present: np.ndarray,
    absent: np.ndarray,
    *,
    delta: float,
    confidence: float,
    generator: np.random.Generator,
    choosing: float = 0.5,
) -> Bound:
    """Return log((power - delta) / false-alarm rate) of one threshold.

    Each rate is at its exact confidence limit.

    Args:
        present: scores of present canaries; higher than those of absent ones.
        absent: scores of absent canaries.
        delta: delta at which epsilon is stated.
        confidence: confidence of the bound.
        generator: draws the scores that choose the threshold.
        choosing: share of the scores that choose the threshold, and which hypothesis is
            the alarm. The bound does not use these scores.
    """
    name = "Clopper-Pearson"
    assumes = "scores are independent"
    chosen_on = []
    held_out = []
    for scores in (present, absent):
        shuffled = generator.permutation(scores)
        cut = math.floor(choosing * len(shuffled))
        chosen_on.append(shuffled[:cut])
        held_out.append(shuffled[cut:])
    if min(map(len, chosen_on + held_out)) < 1:
        return Bound(
            name=name,
            epsilon=math.nan,
            assumes=assumes,
            numbers={},
            reason="too few scores to split",
        )
    tau = 1 - confidence
    sizes = [len(side) for side in held_out]
    threshold, present_is_alarm = _best_threshold(
        *chosen_on, sizes=sizes, delta=delta, tau=tau
    )
    counted = [int((side > threshold).sum()) for side in held_out]
    if not present_is_alarm:
        counted = [size - count for size, count in zip(sizes, counted, strict=True)]
        counted.reverse()
        sizes.reverse()
    hits, alarms = counted
    trials, nulls = sizes
    epsilon = float(
        _of_counts(np.array(hits), trials, np.array(alarms), nulls, delta, tau)
    )
    counts = {
        "threshold": threshold,
        "says": "present" if present_is_alarm else "absent",
        "power": hits / trials,
        "false_alarms": alarms / nulls,
        "trials": trials,
        "nulls": nulls,
    }
    reason = ""
    if epsilon <= 0:
        reason = "no leak is told from chance"
    return Bound(
        name=name,
        epsilon=max(epsilon, 0.0),
        assumes=assumes,
        numbers=counts,
        reason=reason,
    )


def most_of(trials: int, nulls: int, *, delta: float, confidence: float) -> float:
    """Return the largest possible Clopper-Pearson bound: all hits, no false alarm."""
    counts = np.array(trials), trials, np.array(0), nulls
    return float(_of_counts(*counts, delta, 1 - confidence))


def _of_counts(
    hits: np.ndarray,
    trials: int,
    alarms: np.ndarray,
    nulls: int,
    delta: float,
    tau: float,
) -> np.ndarray:
    """Return the bound for each pair of counts; -infinity where there is none.

    Each rate's limit has error probability tau / 2.
    """
    power = least_rate(hits, trials, tau / 2)
    false = largest_rate(alarms, nulls, tau / 2)
    with np.errstate(divide="ignore"):
        return np.where(
            power > delta,
            np.log(np.maximum(power - delta, 0.0)) - np.log(false),
            -np.inf,
        )


def _best_threshold(
    present: np.ndarray,
    absent: np.ndarray,
    *,
    sizes: Sequence[int],
    delta: float,
    tau: float,
) -> tuple[float, bool]:
    """Return the threshold with the best bound for sets of these sizes.

    The bound assumes that those sets have the rates of the given scores.
    """
    values = np.unique(np.concatenate([present, absent]))
    # Between the scores: other scores of the same world would soon exceed a threshold
    # at one of them.
    candidates = values
    gaps = np.zeros(1)
    if len(values) > 1:
        sums = values[1:] + values[:-1]
        candidates = sums / 2
        gaps = np.diff(values)
    if len(candidates) > 512:
        last = len(candidates) - 1
        selected = np.linspace(0, last, 512).astype(int)
        candidates = candidates[selected]
        gaps = gaps[selected]
    rates_above = [
        1 - np.searchsorted(np.sort(side), candidates, side="right") / len(side)
        for side in (present, absent)
    ]

    def bound_of(
        power: np.ndarray, trials: int, false: np.ndarray, nulls: int
    ) -> np.ndarray:
        hits = np.floor(power * trials)
        alarms = np.floor(false * nulls)
        return _of_counts(hits, trials, alarms, nulls, delta, tau)

    present_above, absent_above = rates_above
    says_present = bound_of(present_above, sizes[0], absent_above, sizes[1])
    power_of_absent = 1 - absent_above
    false_of_absent = 1 - present_above
    says_absent = bound_of(power_of_absent, sizes[1], false_of_absent, sizes[0])
    # Of all thresholds that are about as good, take the one in the widest gap: the best
    # of many looks better than it is.
    present_is_alarm = bool(says_present.max() >= says_absent.max())
    bound = says_absent
    if present_is_alarm:
        bound = says_present
    good = np.flatnonzero(bound >= bound.max() - _SLACK)
    widest = good[np.argmax(gaps[good])]
    return float(candidates[widest]), present_is_alarm


# A binomial's tail and the limits of its rate, as in scipy.stats. Importing that module
# takes half of the processor time of a short audit.

Numbers = Any
"""A number, or an array of them."""


def binomial_tail(count: Numbers, trials: int, rate: float) -> np.ndarray:
    """Return P(N > count) for N ~ Binomial(trials, rate).

    Args:
        count: an integer; it may be below 0 or above the number of trials.
        trials: at least 1.
        rate: in (0, 1).
    """
    count = np.asarray(count, dtype=float)
    inside = np.clip(count, 0, trials - 1)
    # P(N > k) is the probability that the (k + 1)-th smallest of `trials` uniform
    # numbers is below the rate.
    tail = betainc(inside + 1, trials - inside, rate)
    tail = np.where(count >= trials, 0.0, tail)
    return np.where(count < 0, 1.0, tail)


def least_rate(hits: Numbers, trials: int, error: float) -> np.ndarray:
    """Return the Clopper-Pearson lower limit of a rate; 0 without a hit.

    It is wrong with probability at most `error`.
    """
    hits = np.asarray(hits, dtype=float)
    positive_hits = np.maximum(hits, 1)
    return np.where(
        hits > 0, betaincinv(positive_hits, trials - positive_hits + 1, error), 0.0
    )


def largest_rate(hits: Numbers, trials: int, error: float) -> np.ndarray:
    """Return the Clopper-Pearson upper limit of a rate; 1 where all were hit."""
    hits = np.asarray(hits, dtype=float)
    capped_hits = np.minimum(hits, trials - 1)
    return np.where(
        hits < trials, betainccinv(capped_hits + 1, trials - capped_hits, error), 1.0
    )
