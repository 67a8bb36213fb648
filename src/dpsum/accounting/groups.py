"""From the privacy of one unit to that of several at once.

Two upper ends that need nothing of the mechanism but what is said of each:

- `group_epsilon`: one unit is changed after another. If each change alone is (eps_1,
  delta_1), k of them are (k eps_1, delta_1 (1 + e^eps_1 + ... + e^((k-1) eps_1))):
  P_0(A) <= e^eps_1 P_1(A) + delta_1, and so on to P_k.
- `known_draws_epsilon`: whoever takes part when is told to the observer. Given the
  draws the releases are one Gaussian, and by joint convexity delta(eps) is at most the
  mean of its delta over the draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy
from scipy.special import log_ndtr

from dpsum.accounting.gaussian import least_root

# A delta so small that an accountant's own bracket says nothing below it.
SMALLEST_DELTA = 1e-25
# What may be cut off a law of counts; it is added to delta. (Sums are convolved without
# FFT: to relative accuracy.)
LEFT_OUT = 1e-13


def group_epsilon(
    epsilon_at: Callable[[float], float],
    size: int,
    delta: float,
    *,
    ceiling: float = math.inf,
) -> float:
    """A proved upper end of epsilon for `size` changes, one after another; infinite
    where this way leads to none.

    Args:
        epsilon_at: delta to an upper end of epsilon for one change; both directions of
            it.
        delta: of all of them together.
        ceiling: an upper end that is known already; given back where this way leads to
            nothing lower.
    """
    if size == 1:
        return epsilon_at(delta)
    share = delta
    epsilon = epsilon_at(delta)
    for _ in range(60):
        if size * epsilon >= ceiling:
            break
        ladder = _ladder(epsilon, size)
        if share * ladder <= delta:
            return size * epsilon
        share = min(share, 0.95 * delta / ladder)
        if not share > SMALLEST_DELTA:
            break
        epsilon = epsilon_at(share)
    return ceiling


def _ladder(epsilon: float, size: int) -> float:
    """1 + e^eps + ... + e^((k-1) eps)."""
    if size * epsilon > 600.0:
        return math.inf
    if epsilon > 1e-12:
        return math.expm1(size * epsilon) / math.expm1(epsilon)
    return float(size)


def squares_of_binomials(
    uses: int, rate: float, rounds: int
) -> tuple[np.ndarray, float]:
    """The law of the sum over rounds of N_t^2, N_t ~ Binomial(k, q) apart from one
    another.

    Returns:
        The probability of 0, 1, 2, ..., and what is missing from it at most.
    """
    law = scipy.stats.binom(uses, rate)
    return _sum_of_squares(law.pmf, law.sf, uses, rounds)


def squares_of_hypergeometrics(
    uses: int, cohort: int, of: int, rounds: int
) -> tuple[np.ndarray, float]:
    """The same where each round's cohort is so many of the units, without replacement:
    N_t of the k are among them.
    """
    uses_at_most = min(uses, of)
    law = scipy.stats.hypergeom(of, uses_at_most, cohort)
    most = min(uses, cohort)
    return _sum_of_squares(law.pmf, law.sf, most, rounds)


def squares_of_a_multinomial(
    uses: int, of: int, rounds: int
) -> tuple[np.ndarray, float]:
    """An upper end of the law of the sum over `rounds` of `of` bins of n_t^2, where k
    balls fall into the bins.

    Counts of balls in bins are Poisson counts of the same mean given that they add up
    to k, so any probability is at most the Poisson one over P(Poisson(k) = k). Returned
    as in `squares_of_binomials`; it adds up to more than one.
    """
    chance = float(scipy.stats.poisson.pmf(uses, uses))
    factor = 1.0 / chance
    count = scipy.stats.poisson(uses / of)
    law, missing = _sum_of_squares(count.pmf, count.sf, uses, rounds)
    return law * factor, missing * factor


def _sum_of_squares(
    law_of: Callable[[np.ndarray], np.ndarray],
    tail_of: Callable[[int], float],
    most: int,
    rounds: int,
) -> tuple[np.ndarray, float]:
    cut = 0
    while cut < most and float(tail_of(cut)) * rounds > LEFT_OUT:
        cut += 1
    counts = np.arange(cut + 1)
    law = np.zeros(cut * cut + 1)
    law[counts * counts] = law_of(counts)
    # No round has more than `most`, so beyond it nothing is missing.
    if cut < most:
        missing = rounds * float(tail_of(cut))
    else:
        missing = 0.0
    total: np.ndarray | None = None
    exponent = rounds
    power = law
    while True:
        if exponent & 1:
            if total is None:
                total = power
            else:
                total = np.convolve(total, power)
            total, lost = _cut(total)
            missing += lost
        exponent >>= 1
        if not exponent:
            break
        power, lost = _cut(np.convolve(power, power))
        missing += lost * (exponent + 1)
    assert total is not None
    return total, missing + LEFT_OUT


def _cut(law: np.ndarray) -> tuple[np.ndarray, float]:
    """A law without its far end, which hardly ever happens, and the chance of that
    end.
    """
    law = np.maximum(law, 0.0)
    tail_mass = np.cumsum(law[::-1])
    tail_mass = tail_mass[::-1]
    keep = int(np.searchsorted(-tail_mass, -1e-17))
    keep = max(keep, 1)
    left_out = law[keep:].sum()
    return law[:keep], float(left_out)


def known_draws_epsilon(
    law: np.ndarray, missing: float, noise_multiplier: float, delta: float
) -> float:
    """A proved upper end: the observer learns the draws too, and so sees one Gaussian
    of mu = sqrt(sum n_t^2) / z.

    Args:
        law: the probability (or an upper end of it) that the sum of squares is 0, 1, 2,
            ...; the rest is `missing`.
    """
    rest = delta - missing
    if rest <= 0:
        return math.inf
    at = np.flatnonzero(law[1:] > 0) + 1
    mu = np.sqrt(at) / noise_multiplier
    weights = law[at]

    def excess(epsilon: float) -> float:
        first = log_ndtr(mu / 2 - epsilon / mu)
        second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        log_ratio = np.minimum(second - first, 0.0)
        share = -np.expm1(log_ratio)
        deltas = np.exp(first) * share
        return float(weights @ deltas) - rest

    if not len(at):
        return 0.0
    root = least_root(excess, xtol=1e-9)
    if not root:
        return 0.0
    return root + 1e-9
