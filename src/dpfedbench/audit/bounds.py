"""From guesses and scores to lower bounds on epsilon, each with its confidence and with what it takes for granted.

All are one-sided: on a mechanism for which the bound's assumptions hold, it is above the true epsilon with a chance
of at most 1 - confidence. A low bound proves nothing.

- `one_run_f_dp`: Mahloujifar, Melis and Chaudhuri, Auditing f-Differential Privacy in One Run (2024).
- `one_run_dp`: Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run (2023), Theorem 5.2.
- `gaussian_shift`: the mean score of those present less that of those absent, over the scores' deviation.
- `clopper_pearson`: exact limits of the error rates of one threshold, chosen on other data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import numba
import numpy as np
from scipy.special import chdtri, ndtr, ndtri, stdtrit

from dpfedbench.accounting.gaussian import gaussian_epsilon
from dpfedbench.audit.rates import binomial_tail, largest_rate, least_rate
from dpfedbench.errors import BenchError

LARGEST_EPSILON = 1e4
"""What a bound says at most; beyond it numbers say nothing more."""

_SLACK = 0.1
"""How much of a bound is given up for a threshold with more room on both sides."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on epsilon.

    Attributes:
        name: of the method.
        epsilon: the bound at the audit's delta; NaN where there is none, and then `reason` says why.
        assumes: what must be true besides the experiment for the confidence to hold.
        found: the numbers it was made of.
        reason: why there is no bound, or why it is as it is; else "".
    """

    name: str
    epsilon: float
    assumes: str
    found: dict[str, Any]
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guesses:
    """Guesses of secret coins: how many coins there were, how many were guessed, how many of these rightly."""

    coins: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.coins or self.coins < 1:
            raise BenchError(f"an audit cannot have {self.right} right of {self.made} guesses of {self.coins} coins")


def guess(scores: np.ndarray, coins: np.ndarray, made: int, *, both: bool = True) -> Guesses:
    """Guess "present" for the highest scores and, if `both`, "absent" for as many of the lowest.

    Neither the number nor the sides may depend on the scores, or the confidence is lost. Equal scores are taken in
    the order in which they stand, which must say nothing of the coins.

    Args:
        scores: float [m], higher for present.
        coins: bool [m], the truth.
        made: guesses in all, at most m; the last odd one of two sides is left out.
        both: whether there are two sides.
    """
    order = np.argsort(scores, kind="stable")
    low = made // 2 if both else 0
    high = low if both else made
    right = int(coins[order[len(order) - high :]].sum()) + int((~coins[order[:low]]).sum())
    return Guesses(coins=len(coins), made=low + high, right=right)


def guess_surest(scores: np.ndarray, coins: np.ndarray, *, secret: bool) -> Guesses:
    """As many guesses as suit the number of coins, fixed beforehand.

    With few guesses only the surest are made, which is where a mechanism leaks; with too few, chance hides it. A
    tenth, half of them "absent"; where participation is secret a twentieth, none of them "absent", since a release
    that a canary was not seen in says little. But a hundred where there are so many.
    """
    made = min(max(100, len(coins) // (20 if secret else 10)), len(coins))
    return guess(scores, coins, made, both=not secret)


# One run, f-DP


class Family(Protocol):
    """Mechanisms ordered by how much they leak.

    `larger`: the leak's size, 0 for none, to the trade-off's inverse: the least chance under one hypothesis of an
    event that has chance y under the other.
    """

    @property
    def name(self) -> str: ...

    @property
    def largest(self) -> float: ...

    def inverse(self, leak: float) -> Callable[[float], float]:
        """y to x as above; not above the true one (a trade-off curve that is too low loses power, not validity)."""
        ...

    def epsilon(self, leak: float, delta: float) -> float:
        """Epsilon at delta of the member of the family."""
        ...


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """One Gaussian release: mu is sensitivity over noise deviation."""

    name: str = "one Gaussian release"
    largest: float = 30.0

    def inverse(self, leak: float) -> Callable[[float], float]:
        def at(y: float) -> float:
            return float(ndtr(ndtri(y) - leak))

        return at

    def epsilon(self, leak: float, delta: float) -> float:
        return 0.0 if leak <= 0 else gaussian_epsilon(1 / leak, delta)


def refutes(guesses: Guesses, inverse: Callable[[float], float], confidence: float) -> bool:
    """Whether so many right guesses have a chance below 1 - confidence under every mechanism with this trade-off.

    Mahloujifar et al., Algorithm 3 for coins: r is a bound on the chance that a given guess is made and right and at
    least i are right in all, h on that it is made and wrong. Each is carried down from i = right to 0; were the tail
    as likely as 1 - confidence, then at 0 they would add up to more than the chance of a guess, made / coins.
    """
    m, made, right, tau = guesses.coins, guesses.made, guesses.right, 1 - confidence
    r, h = tau * right / m, tau * (made - right) / m
    limit = made / m
    for i in range(right - 1, -1, -1):
        if r + h > limit:
            return True
        new = max(h, inverse(min(r, 1.0)))
        if i < made:
            r += i / (made - i) * (new - h)
        h = new
    return r + h > limit


def one_run_f_dp(guesses: Guesses, family: Family, *, delta: float, confidence: float) -> Bound:
    """The least leaking member of a family that is not refuted, as epsilon at delta.

    Refuted is the member's trade-off curve, whatever the mechanism is; that the bound is one on epsilon at this delta
    takes for granted that the mechanism's curve is one of the family's.
    """
    name = "one-run f-DP"
    assumes = f"the trade-off curve is one of the family: {family.name}"
    found: dict[str, Any] = dataclasses.asdict(guesses) | {"leak": 0.0}
    reason = ""
    if not refutes(guesses, lambda y: y, confidence):
        return Bound(name=name, epsilon=0.0, assumes=assumes, found=found, reason="no leak is told from chance")
    low, high = 0.0, 0.25
    while high < family.largest and refutes(guesses, family.inverse(high), confidence):
        low, high = high, min(2 * high, family.largest)
    if refutes(guesses, family.inverse(high), confidence):
        low, reason = high, "the largest leak that is looked at is refuted: the true bound is higher"
    else:
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if refutes(guesses, family.inverse(middle), confidence) else (low, middle)
    epsilon = min(family.epsilon(low, delta), LARGEST_EPSILON)
    return Bound(name=name, epsilon=epsilon, assumes=assumes, found=found | {"leak": low}, reason=reason)


@numba.njit(cache=True)
def _least_chance(y: float, epsilons: np.ndarray, deltas: np.ndarray) -> float:
    """The greatest lower bound on x that lines y <= e^eps x + delta, and the same of the complements, give."""
    x = 0.0
    for i in range(len(epsilons)):
        x = max(x, (y - deltas[i]) * math.exp(-epsilons[i]), 1 - deltas[i] - math.exp(epsilons[i]) * (1 - y))
    return x


class Curves:
    """A family whose members are known by epsilon at any delta, both directions, proved from above.

    Args:
        name: what the members are.
        epsilon: (leak, delta) to an upper end of epsilon.
        largest: the largest leak that can be asked for.
    """

    # From where guesses of few coins lie to certainty: a curve between the lines is only touched, never crossed.
    DELTAS = np.concatenate([np.geomspace(1e-7, 1e-2, 6), np.geomspace(2e-2, 0.9, 12)])

    def __init__(self, name: str, epsilon: Callable[[float, float], float], largest: float) -> None:
        self.name, self.largest, self._epsilon = name, largest, epsilon

    def inverse(self, leak: float) -> Callable[[float], float]:
        """As in `Family`: supporting lines of the trade-off curve."""
        deltas = self.DELTAS
        epsilons = np.array([self._epsilon(leak, float(delta)) for delta in deltas])

        def at(y: float) -> float:
            return float(_least_chance(y, epsilons, deltas))

        return at

    def epsilon(self, leak: float, delta: float) -> float:
        """As in `Family`."""
        return 0.0 if leak <= 0 else self._epsilon(leak, delta)


# One run, (epsilon, delta)


def _chance(guesses: Guesses, epsilon: float, delta: float) -> float:
    """A bound on the chance of at least so many right guesses under any (epsilon, delta)-DP mechanism (Theorem 5.2)."""
    m, made, right = guesses.coins, guesses.made, guesses.right
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(binomial_tail(right - 1, made, rate))
    steps = np.arange(1, right + 1)
    between = binomial_tail(right - steps - 1, made, rate) - tail
    alpha = float(np.max(between / steps, initial=0.0))
    return min(1.0, tail + 2 * m * delta * alpha)


def one_run_dp(guesses: Guesses, *, delta: float, confidence: float) -> Bound:
    """The largest epsilon at which (epsilon, delta) is refuted by so many right guesses."""
    tau = 1 - confidence
    epsilon, reason = 0.0, ""
    if _chance(guesses, 0.0, delta) > tau:
        reason = "no leak is told from chance"
    else:
        low, high = 0.0, 1.0
        while _chance(guesses, high, delta) <= tau:
            low, high = high, 2 * high
        while high - low > 1e-5:
            middle = (low + high) / 2
            low, high = (middle, high) if _chance(guesses, middle, delta) <= tau else (low, middle)
        epsilon = low
    return Bound(
        name="one-run (eps, delta)-DP",
        epsilon=epsilon,
        assumes="nothing of the mechanism",
        found=dataclasses.asdict(guesses),
        reason=reason,
    )


# Scores


def gaussian_shift(present: np.ndarray, absent: np.ndarray, *, delta: float, confidence: float) -> Bound:
    """The lower limit of mu = (mean present - mean absent) / deviation, as epsilon of one Gaussian release.

    Student's t for the difference and chi-squared for the deviation, half of the error each. The pooled deviation is
    measured, not taken from what the mechanism says of itself.

    Args:
        present, absent: scores float [n], [k]; a shift is measured in both directions' deviation.
    """
    name, assumes = "Gaussian mean shift", "scores are Gaussian of one deviation, shifted by presence; independent"
    n, k = len(present), len(absent)
    if min(n, k) < 2:
        return Bound(
            name=name, epsilon=math.nan, assumes=assumes, found={}, reason="fewer than two canaries on one side"
        )
    free, tail = n + k - 2, (1 - confidence) / 2
    # In units of the largest score, so that squares stay in range.
    unit = float(np.max(np.abs(np.concatenate([present, absent])))) or 1.0
    present, absent = present / unit, absent / unit
    squares = float(((present - present.mean()) ** 2).sum() + ((absent - absent.mean()) ** 2).sum())
    pooled = math.sqrt(squares / free)
    shift = float(present.mean() - absent.mean())
    least = shift + float(stdtrit(free, tail)) * pooled * math.sqrt(1 / n + 1 / k)
    widest = math.sqrt(squares / float(chdtri(free, confidence + tail)))
    found = {"shift": shift * unit, "deviation": pooled * unit, "present": n, "absent": k}
    if least <= 0:
        return Bound(name=name, epsilon=0.0, assumes=assumes, found=found, reason="no leak is told from chance")
    if widest == 0 or least / widest > Gaussian.largest:
        mu, reason = Gaussian.largest, "the largest leak that is looked at is refuted: the true bound is higher"
    else:
        mu, reason = least / widest, ""
    epsilon = min(gaussian_epsilon(1 / mu, delta), LARGEST_EPSILON)
    return Bound(name=name, epsilon=epsilon, assumes=assumes, found=found | {"leak": mu}, reason=reason)


def clopper_pearson(
    present: np.ndarray,
    absent: np.ndarray,
    *,
    delta: float,
    confidence: float,
    generator: np.random.Generator,
    choosing: float = 0.5,
) -> Bound:
    """log((power - delta) / false alarms) of one threshold, each rate at its exact limit.

    The threshold, and which hypothesis is the alarm, are chosen on a part of the scores that is then left out.

    Args:
        present, absent: scores float [n], [k], higher for present.
        generator: draws the part on which the threshold is chosen.
        choosing: its share.
    """
    name, assumes = "Clopper-Pearson", "scores are independent"
    sides = [generator.permutation(scores) for scores in (present, absent)]
    cuts = [math.floor(choosing * len(scores)) for scores in sides]
    if min(cuts) < 1 or min(len(side) - cut for side, cut in zip(sides, cuts, strict=True)) < 1:
        return Bound(name=name, epsilon=math.nan, assumes=assumes, found={}, reason="too few scores to split")
    chosen_on = [side[:cut] for side, cut in zip(sides, cuts, strict=True)]
    left = [side[cut:] for side, cut in zip(sides, cuts, strict=True)]
    threshold, above = _best_threshold(*chosen_on, sizes=(len(left[0]), len(left[1])), delta=delta, tau=1 - confidence)
    if above:
        hits, alarms = int((left[0] > threshold).sum()), int((left[1] > threshold).sum())
        trials, nulls = len(left[0]), len(left[1])
    else:
        hits, alarms = int((left[1] <= threshold).sum()), int((left[0] <= threshold).sum())
        trials, nulls = len(left[1]), len(left[0])
    epsilon = float(_of_counts(np.array([hits]), trials, np.array([alarms]), nulls, delta, 1 - confidence)[0])
    found = {
        "threshold": threshold, "says": "present" if above else "absent", "power": hits / trials,
        "false_alarms": alarms / nulls, "trials": trials, "nulls": nulls,
    }  # fmt: skip
    reason = "" if epsilon > 0 else "no leak is told from chance"
    return Bound(name=name, epsilon=max(epsilon, 0.0), assumes=assumes, found=found, reason=reason)


def _of_counts(hits: np.ndarray, trials: int, alarms: np.ndarray, nulls: int, delta: float, tau: float) -> np.ndarray:
    """The bound of each pair of counts, each rate's limit having half of tau; -infinity where there is none."""
    power, false = least_rate(hits, trials, tau / 2), largest_rate(alarms, nulls, tau / 2)
    with np.errstate(divide="ignore"):
        return np.where(power > delta, np.log(np.maximum(power - delta, 0.0)) - np.log(false), -np.inf)


def _best_threshold(
    present: np.ndarray, absent: np.ndarray, *, sizes: tuple[int, int], delta: float, tau: float
) -> tuple[float, bool]:
    """The threshold with the best bound, if the rates of the scores given were those of sets of these sizes."""
    values = np.unique(np.concatenate([present, absent]))
    # Between the scores: what lies at one of them, others of the same world will soon be above.
    candidates, gaps = (values, np.zeros(1)) if len(values) == 1 else ((values[1:] + values[:-1]) / 2, np.diff(values))
    if len(candidates) > 512:
        kept = np.linspace(0, len(candidates) - 1, 512).astype(int)
        candidates, gaps = candidates[kept], gaps[kept]
    above = [1 - np.searchsorted(np.sort(side), candidates, side="right") / len(side) for side in (present, absent)]

    def counts(rates: np.ndarray, size: int) -> np.ndarray:
        return np.floor(rates * size)

    says_present = _of_counts(counts(above[0], sizes[0]), sizes[0], counts(above[1], sizes[1]), sizes[1], delta, tau)
    says_absent = _of_counts(
        counts(1 - above[1], sizes[1]), sizes[1], counts(1 - above[0], sizes[0]), sizes[0], delta, tau
    )
    # Of all that are about as good the one in the widest gap: the best of many looks better than it is.
    present_is_alarm = bool(says_present.max() >= says_absent.max())
    bound = says_present if present_is_alarm else says_absent
    good = np.flatnonzero(bound >= bound.max() - _SLACK)
    return float(candidates[good[np.argmax(gaps[good])]]), present_is_alarm
