"""The Gaussian mechanism, joint releases of one cohort, and tails with error bounds."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy
from scipy.special import log_ndtr, ndtr, ndtri

Schedule = tuple[tuple[float, int], ...]
"""The noise of rounds: (noise multiplier, number of rounds at it), ..."""

Bracket = tuple[float, float]
"""Low and high end of epsilon."""

Rounded = tuple[np.ndarray, np.ndarray]
"""Numbers with bounds on their relative errors, or points with absolute ones."""

ROUNDING = 2.0**-53
"""Relative rounding error of one operation."""

FUNCTION = 8 * ROUNDING
"""Relative error of numpy's exp, log, expm1 and log1p: four units in the last place, as
numpy states.
"""

_GROUPS = 16
_HIGH_GROUPS = 32
_LOW_RATIO = 1.1
"""Ratio of a group's multipliers at the low end, whose fine grid makes groups slow."""


def ends(schedule: Schedule) -> tuple[float, float, int]:
    """Return the least and the greatest noise multiplier, and the number of rounds."""
    multipliers = [z for z, _ in schedule]
    rounds = sum(count for _, count in schedule)
    return min(multipliers), max(multipliers), rounds


def grouped(schedule: Schedule, *, least: bool) -> Schedule:
    """Return a long schedule with similar multipliers merged.

    Args:
        schedule: the schedule.
        least: whether a group gets its least multiplier (for a high end) or its
            greatest (for a low end).
    """
    if len(schedule) <= _GROUPS:
        return schedule
    lowest, highest, _ = ends(schedule)
    width = math.log(_LOW_RATIO)
    if least:
        share = math.log(highest / lowest) / _HIGH_GROUPS
        width = min(width, max(share, 1e-3))
    groups: dict[int, list[tuple[float, int]]] = {}
    for z, count in schedule:
        cell = math.floor(math.log(z) / width)
        group = groups.setdefault(cell, [])
        group.append((z, count))
    grouped_schedule = []
    for group in groups.values():
        lowest, highest, rounds = ends(tuple(group))
        z = highest
        if least:
            z = lowest
        grouped_schedule.append((z, rounds))
    return tuple(grouped_schedule)


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Return the smallest delta of a Gaussian release of sensitivity 1, deviation z.

    Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy (2018),
    Theorem 8: delta = Phi(1/(2z) - eps z) - e^eps Phi(-1/(2z) - eps z).
    """
    z = noise_multiplier
    first = log_ndtr(0.5 / z - epsilon * z)
    second = epsilon + log_ndtr(-0.5 / z - epsilon * z)
    share = -math.expm1(second - first)
    return math.exp(first) * share


def gaussian_deltas(noise_multiplier: float, epsilons: np.ndarray) -> np.ndarray:
    """Return `gaussian_delta` at each epsilon, float64 [n]."""
    deltas = [gaussian_delta(noise_multiplier, float(epsilon)) for epsilon in epsilons]
    return np.array(deltas)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 of one Gaussian release at delta.

    It is exact to 1e-12.
    """
    z = noise_multiplier

    def excess(epsilon: float) -> float:
        return gaussian_delta(z, epsilon) - delta

    if delta >= 1:
        return 0.0
    return least_root(excess, xtol=1e-13, rtol=1e-13, maxiter=300)


def exact_bracket(noise_multiplier: float, delta: float) -> Bracket:
    """Return `gaussian_epsilon` as both ends of a bracket."""
    exact = gaussian_epsilon(noise_multiplier, delta)
    return exact, exact


def least_root(excess: Callable[[float], float], **tolerance: Any) -> float:
    """Return the root >= 0 of a falling function; 0 where it starts below 0.

    Args:
        excess: the function.
        tolerance: tolerances of scipy's brentq.
    """
    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    root = scipy.optimize.brentq(excess, 0.0, high, **tolerance)
    return float(root)


def rounded_up(noise_multiplier: float) -> float:
    """Return a multiplier rounded up to four significant digits."""
    digits = math.floor(math.log10(noise_multiplier))
    scale = 10.0 ** (digits - 3)
    rounded = math.ceil(noise_multiplier / scale - 1e-9)
    return float(f"{rounded * scale:.6g}")


def guess_epsilon(
    noise_multiplier: float, rate: float, rounds: int, delta: float
) -> float:
    """Return a rough epsilon of a sampled Gaussian, to start a search from.

    It is the larger of two guesses: by many small losses, and by one large loss.
    """
    s = 1.0 / noise_multiplier
    square = rounds * math.expm1(min(s * s, 60.0))
    score = -float(ndtri(min(delta, 0.4)))
    normal = score * rate * square**0.5
    chance = min(3.0 * delta / (rounds * rate), 0.4)
    score = float(ndtri(chance))
    exponent = s * s / 2 - s * score
    jump = rate * math.exp(min(exponent, 600.0))
    return 0.95 * math.log1p(max(normal, jump))


def joint_multiplier(multipliers: Sequence[float]) -> float:
    """Return the multiplier of several releases of one cohort: (sum of z^-2)^-1/2."""
    squares = math.fsum(z**-2 for z in multipliers)
    return squares**-0.5


def joint_or_only(multipliers: Sequence[float]) -> float:
    """Return `joint_multiplier`, or a single multiplier unchanged, to the bit."""
    if len(multipliers) == 1:
        return multipliers[0]
    return joint_multiplier(multipliers)


def joint_of(schedule: Schedule) -> float:
    """Return the multiplier of all rounds of a schedule as one Gaussian release."""
    squares = sum(count / z**2 for z, count in schedule)
    return float(squares**-0.5)


def upper_tail(at: np.ndarray, off: np.ndarray | float = 0.0) -> Rounded:
    """Return P(N > at) for a standard normal N, with a bound on the relative error.

    scipy's `ndtr` takes erfc of a = at/sqrt(2), which is exp(-a^2) times a function
    that is right to a few units in the last place. a is rounded twice and a^2 once
    more, so that the exponent is off by at most 5 a^2 2^-53 = 2.5 at^2 2^-53, and exp
    of it by that share of itself: far out no fixed margin is enough. Taken is (16 + 3
    at^2) 2^-53, about twice the largest error that was found against mpmath up to at =
    37 (`tests/dploss/test_gaussian.py`).

    Where `at` itself may be off by `off`, the tail moves by at most exp(h off) - 1 of
    itself, h the greatest hazard on the way, and the normal's hazard at x is at most
    max(x, 0) + 1. `at` is infinite where the tail is 0 or 1 for certain.
    """
    is_finite = np.isfinite(at)
    positive = np.maximum(at, 0.0)
    out = np.where(is_finite, positive, 0.0)
    moved = np.where(is_finite, off, 0.0)
    hazard = out + 1.0 + moved
    with np.errstate(over="ignore"):
        moved = np.expm1(hazard * moved)
    tail = ndtr(-at)
    is_far = out > 37.0
    if np.any(is_far):
        # There scipy's `ndtr` is 0 where the tail is below 1e-308 and a number still.
        far_tail = np.exp(log_ndtr(-at))
        tail = np.where(is_far, far_tail, tail)
    rounding = ROUNDING * (16.0 + 3.0 * out**2)
    return tail, rounding + 1.001 * moved
