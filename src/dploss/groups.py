"""From the privacy of one unit to that of several at once.

Two upper bounds that need only the stated properties of the mechanism:

- `group_epsilon`: one unit is changed after another. If each change alone is (eps_1,
  delta_1), k of them are (k eps_1, delta_1 (1 + e^eps_1 + ... + e^((k-1) eps_1))):
  P_0(A) <= e^eps_1 P_1(A) + delta_1, and so on to P_k.
- `known_draws_epsilon`: the observer learns who takes part when. Given the draws, the
  releases are one Gaussian, and by joint convexity delta(eps) is at most the mean of
  its delta over the draws.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy
from scipy.special import log_ndtr

from dploss.gaussian import least_root

# Smallest delta at which the bracket of one unit is used.
SMALLEST_DELTA = 1e-25
# Probability that may be cut off a law of counts; it is added to delta. (Sums are
# convolved without FFT, to relative accuracy.)
LEFT_OUT = 1e-13


def group_epsilon(
    epsilon_at: Callable[[float], float],
    size: int,
    delta: float,
    *,
    ceiling: float = math.inf,
) -> float:
    """Return a proven upper bound on epsilon for `size` changes, one after another.

    Args:
        epsilon_at: function from delta to an upper bound on epsilon for one change, in
            both directions.
        size: number of changes.
        delta: delta of all changes together.
        ceiling: an upper bound that is known already; returned where this argument
            gives nothing lower. By default infinity.
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
    """Return 1 + e^eps + ... + e^((k-1) eps)."""
    if size * epsilon > 600.0:
        return math.inf
    if epsilon > 1e-12:
        return math.expm1(size * epsilon) / math.expm1(epsilon)
    return float(size)


def squares_of_binomials(
    uses: int, rate: float, rounds: int
) -> tuple[np.ndarray, float]:
    """Return the law of the sum over rounds of N_t^2, N_t ~ Binomial(k, q) independent.

    Returns:
        The probabilities of 0, 1, 2, ..., and a bound on the missing probability.
    """
    law = scipy.stats.binom(uses, rate)
    return _sum_of_squares(law.pmf, law.sf, uses, rounds)


def squares_of_hypergeometrics(
    uses: int, cohort: int, of: int, rounds: int
) -> tuple[np.ndarray, float]:
    """Return the law of the sum over rounds of N_t^2 for cohorts of fixed size.

    N_t of the k units are in a cohort that is drawn from all units without replacement.
    Returns as `squares_of_binomials`.
    """
    uses_at_most = min(uses, of)
    law = scipy.stats.hypergeom(of, uses_at_most, cohort)
    most = min(uses, cohort)
    return _sum_of_squares(law.pmf, law.sf, most, rounds)


def squares_of_a_multinomial(
    uses: int, of: int, rounds: int
) -> tuple[np.ndarray, float]:
    """Return an upper bound on the law of the sum of n_t^2 for balls in bins.

    k balls fall into `of` bins, and the sum is over `rounds` of the bins. Counts of
    balls in bins are Poisson counts of the same mean, conditioned on their sum k, so
    that any probability is at most the Poisson one over P(Poisson(k) = k). Returns as
    `squares_of_binomials`; the bound adds up to more than one.
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
    total = np.ones(1)
    exponent = rounds
    power = law
    while True:
        if exponent & 1:
            total, lost = _cut(np.convolve(total, power))
            missing += lost
        exponent >>= 1
        if not exponent:
            break
        power, lost = _cut(np.convolve(power, power))
        missing += lost * (exponent + 1)
    return total, missing + LEFT_OUT


def _cut(law: np.ndarray) -> tuple[np.ndarray, float]:
    """Return a law without its far tail, and the probability of that tail."""
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
    """Return a proven upper bound on epsilon where the observer also learns the draws.

    The observer then sees one Gaussian of mu = sqrt(sum n_t^2) / z.

    Args:
        law: probability (or an upper bound on it) that the sum of squares is 0, 1, 2,
            ...
        missing: probability of all other values.
        noise_multiplier: z.
        delta: delta at which epsilon is stated.
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
