"""Laws of counts and limits of their rates, from `scipy.special`: as scipy.stats has them, which takes longer to load
than most accounts and audits take."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import betainc, betainccinv, betaincinv, gammaln, pdtrc, xlog1py, xlogy

Numbers = Any
"""A number, or an array of them."""


def binomial_tail(count: Numbers, trials: int, rate: float) -> np.ndarray:
    """P(N > count), N ~ Binomial(trials, rate); count an integer, also below 0 or beyond the trials."""
    count = np.asarray(count, dtype=float)
    inside = np.clip(count, 0, max(trials - 1, 0))
    # P(N > k) is the chance that the (k + 1)-th smallest of `trials` uniform numbers is below the rate.
    found = betainc(inside + 1, trials - inside, rate) if trials else np.zeros_like(count)
    return np.where(count < 0, 1.0, np.where(count >= trials, 0.0, found))


def binomial_log_chance(count: Numbers, trials: int, rate: float) -> np.ndarray:
    """log P(N = count), N ~ Binomial(trials, rate), for counts from 0 to trials."""
    count = np.asarray(count, dtype=float)
    ways = gammaln(trials + 1) - gammaln(count + 1) - gammaln(trials - count + 1)
    return np.asarray(ways + xlogy(count, rate) + xlog1py(trials - count, -rate))


def poisson_chance(count: Numbers, mean: float) -> np.ndarray:
    """P(N = count), N ~ Poisson(mean)."""
    count = np.asarray(count, dtype=float)
    return np.asarray(np.exp(xlogy(count, mean) - gammaln(count + 1) - mean))


def poisson_tail(count: Numbers, mean: float) -> np.ndarray:
    """P(N > count), N ~ Poisson(mean), for counts from 0."""
    return np.asarray(pdtrc(count, mean))


def least_rate(hits: Numbers, trials: int, error: float) -> np.ndarray:
    """Clopper and Pearson's lower limit of a rate, wrong with a chance of at most `error`; 0 where nothing was hit."""
    hits = np.asarray(hits, dtype=float)
    some = np.maximum(hits, 1)
    return np.where(hits > 0, betaincinv(some, trials - some + 1, error), 0.0)


def largest_rate(hits: Numbers, trials: int, error: float) -> np.ndarray:
    """Clopper and Pearson's upper limit; 1 where all were hit."""
    hits = np.asarray(hits, dtype=float)
    some = np.minimum(hits, trials - 1)
    return np.where(hits < trials, betainccinv(some + 1, trials - some, error), 1.0)
