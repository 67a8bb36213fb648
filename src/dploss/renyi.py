"""Renyi divergences of Poisson-sampled Gaussians, and their conversion to epsilon.

Divergences add up over rounds, so that they serve for budgets kept round by round, and
for searches of several runs.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, log_ndtr, xlog1py, xlogy

from dploss.gaussian import Schedule

PROVEN_ORDERS = tuple(range(2, 257))
"""Integer orders of proven bounds: each of them gives an upper bound on epsilon."""


def renyi(noise_multiplier: float, rate: float, orders: Sequence[float]) -> np.ndarray:
    """Return upper bounds on the Renyi divergences of one round (z, q), orders above 1.

    They hold in both directions.

    Mironov, Talwar and Zhang, Renyi Differential Privacy of the Sampled Gaussian
    Mechanism (2019), Section 3.3.
    """
    return _renyi(noise_multiplier, rate, tuple(orders))


def renyi_of_rounds(
    schedule: Schedule, rate: float, orders: Sequence[float]
) -> np.ndarray:
    """Return `renyi` of all rounds of a schedule together."""
    divergences = [count * renyi(z, rate, orders) for z, count in schedule]
    return np.asarray(np.sum(divergences, axis=0))


@lru_cache(maxsize=4096)
def _renyi(
    noise_multiplier: float, rate: float, orders: tuple[float, ...]
) -> np.ndarray:
    if all(isinstance(order, int) for order in orders):
        return _renyi_whole(noise_multiplier, rate, orders)
    if rate in (0.0, 1.0):
        twice_variance = 2 * noise_multiplier**2
        return np.array([rate * order / twice_variance for order in orders])
    return np.array(
        [_log_moment(noise_multiplier, rate, order) / (order - 1) for order in orders]
    )


def _log_moment(noise_multiplier: float, rate: float, order: float) -> float:
    """Return log E_Q (P/Q)^order; infinity where its series converges too slowly.

    It equals dp-accounting's `_compute_log_a` to the bit, and avoids the import of that
    package, which takes a second.
    """
    z = noise_multiplier
    log_q = math.log(rate)
    log_rest = math.log1p(-rate)
    is_whole = float(order).is_integer()
    count = order + 1 if is_whole else 1000.0
    i = np.arange(count)
    j = order - i
    choose = gammaln(order + 1) - gammaln(i + 1) - gammaln(j + 1)
    twice_variance = 2 * z**2
    log_density_ratio = (i * i - i) / twice_variance
    lower_terms = choose + i * log_q + j * log_rest + log_density_ratio
    if is_whole:
        return float(np.logaddexp.reduce(lower_terms))
    # The integral to either side of where both densities are equal, each a series.
    log_odds = math.log(1 / rate - 1)
    middle = z**2 * log_odds + 0.5
    log_density_ratio = (j * j - j) / twice_variance
    upper_terms = choose + j * log_q + i * log_rest + log_density_ratio
    deviation = math.sqrt(2) * z
    lower_terms = lower_terms + _log_normal_tail((i - middle) / deviation)
    upper_terms = upper_terms + _log_normal_tail((middle - j) / deviation)
    lower_totals = np.logaddexp.accumulate(lower_terms)
    upper_totals = np.logaddexp.accumulate(upper_terms)
    totals = np.logaddexp(lower_totals, upper_totals)
    lower_falls = np.diff(lower_terms) < 0
    upper_falls = np.diff(upper_terms) < 0
    both_fall = lower_falls & upper_falls
    larger_terms = np.maximum(lower_terms, upper_terms)
    is_negligible = larger_terms[1:] < totals[1:] - 30
    is_end = both_fall & is_negligible
    if not is_end.any():
        return math.inf
    end = np.argmax(is_end)
    return float(totals[1:][end])


def _log_normal_tail(at: np.ndarray) -> np.ndarray:
    """Return log erfc(at) / 2, rounded as dp-accounting rounds it."""
    log_tail = log_ndtr(-at * 2**0.5)
    log_twice_tail = math.log(2) + log_tail
    return np.asarray(math.log(0.5) + log_twice_tail)


@lru_cache(maxsize=16)
def _binomials(rate: float, orders: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return log C(alpha, k) (1 - q)^(alpha - k) q^k for each order and k, and the k.

    The log is -inf for k above the order.
    """
    alpha = np.array(orders, dtype=float)
    alpha = alpha[:, None]
    k = np.arange(max(orders) + 1, dtype=float)
    k = k[None, :]
    is_inside = k <= alpha
    rest = np.where(is_inside, alpha - k, 0.0)
    log_choose = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(rest + 1)
    logs = log_choose + xlogy(k, rate) + xlog1py(rest, -rate)
    return np.where(is_inside, logs, -np.inf), k


def _renyi_whole(
    noise_multiplier: float, rate: float, orders: tuple[float, ...]
) -> np.ndarray:
    """Return `renyi` at all integer orders at once, by the defining sum."""
    logs, k = _binomials(rate, orders)
    twice_variance = 2 * noise_multiplier**2
    terms = logs + (k * k - k) / twice_variance
    # As scipy's logsumexp, without its overhead: noise that decays needs thousands of
    # calls.
    top = terms.max(axis=1)
    weights = np.exp(terms - top[:, None])
    total = weights.sum(axis=1)
    log_moments = top + np.log(total)
    return log_moments / (np.array(orders) - 1.0)


def epsilon_of(
    divergences: np.ndarray, orders: Sequence[float], delta: float, *, tight: bool
) -> float:
    """Convert Renyi divergences to epsilon.

    Args:
        divergences: divergence at each order.
        orders: the orders.
        delta: delta at which epsilon is stated.
        tight: whether to use the tighter conversion of Canonne et al. instead of
            Mironov's.
    """
    alphas = np.asarray(orders, dtype=float)
    log_delta = math.log(delta)
    epsilons = divergences - log_delta / (alphas - 1.0)
    if tight:
        log_alphas = np.log(alphas)
        log_ratio = log_alphas / (alphas - 1.0)
        epsilons = epsilons + np.log1p(-1.0 / alphas) - log_ratio
    least = float(np.min(epsilons))
    return max(least, 0.0)


def renyi_epsilon(
    schedule: Schedule, rate: float, delta: float, orders: Sequence[float]
) -> float:
    """Return an upper bound on epsilon by Renyi divergences of all rounds.

    The conversion is eps = rdp + log(1/delta) / (alpha - 1) (Mironov 2017, Proposition
    3), as in TensorFlow Privacy's moments accountant when the papers were written.
    """
    divergences = renyi_of_rounds(schedule, rate, orders)
    return epsilon_of(divergences, orders, delta, tight=False)
