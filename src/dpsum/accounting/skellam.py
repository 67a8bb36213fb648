"""Skellam noise on whole numbers: what a shift of it tells, in any number of dimensions, as one Gaussian release.

X is Skellam of variance mu, the difference of two Poisson variables of mean mu / 2; sums of it are Skellam again.

Guarantee. Let g be the largest step of the normal score -Phi^-1(P(X >= t)) from one whole t to the next. Then X + v
against X, each coordinate with noise of its own, is at least as hard to tell apart as two normals at a distance of
g |v|_2, for every v of whole numbers. Proof. X is log-concave (Poisson variables are, and convolution keeps it), so
that the best tests between X and X + 1 are "X >= t" and mixtures of two of these: their trade-off is linear between its
corners (P(X >= t), 1 - P(X >= t - 1)), and each corner lies on or above that of two normals at a distance of g. So does
the line between two of them, since the normals' is convex. A shift by k is k shifts by one after another, which for
normals is k g (Dong, Roth and Su 2022, Gaussian Differential Privacy: groups), a negative one is the same by symmetry,
and coordinates compose to g |v|_2 (there: composition). Revealing nothing but the sum modulo a number, or choosing v
at random, makes no test better.

g is found numerically. It is the middle step, 2 Phi^-1((1 + P(X = 0)) / 2), or about (1 + 1 / (6 mu)) / mu^1/2; all
steps up to `_FAR` deviations are computed, and beyond it X has geometric tails in place of its own, which changes the
chance of any event by less than 1e-60 and keeps it log-concave. There steps fall, since a normal's hazard rises.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

_FAR = 20.0
_ROUNDING = 1e-8  # relative, of a step; far above what double precision loses


@functools.lru_cache(maxsize=64)
def log_tails(variance: float) -> np.ndarray:
    """log P(X >= t) for t from 0 to `_FAR` deviations; last is the log of P(X = t) / P(X = t - 1) of the last t."""
    far = math.ceil(_FAR * math.sqrt(variance)) + 20
    ratios, ratio = np.empty(far), 0.0
    # P(X = t) / P(X = t - 1) = I_t / I_(t-1), which runs backwards from any start: each step forgets most of it.
    for t in range(far + 200 + math.ceil(5 * math.sqrt(variance)), 0, -1):
        ratio = 1.0 / (2.0 * t / variance + ratio)
        if t <= far:
            ratios[t - 1] = ratio
    chances = np.exp(np.concatenate([[0.0], np.cumsum(np.log(ratios))]))
    beyond = chances[-1] * ratios[-1] / (1.0 - ratios[-1])
    tails = np.cumsum(chances[::-1])[::-1] + beyond
    found = np.append(np.log(tails / (2.0 * tails[1] + chances[0])), math.log(ratios[-1]))
    found.flags.writeable = False
    return found


def step(variance: float) -> float:
    """g: as far apart as normals at this distance are X and X + 1, at most.

    Args:
        variance: mu > 0, of X.
    """
    *_, last = logs = log_tails(variance)
    scores = -ndtri_exp(logs[1:-1])
    hazard = math.exp(-0.5 * scores[-1] ** 2 - 0.5 * math.log(2 * math.pi) - log_ndtr(-scores[-1]))
    return (1 + _ROUNDING) * max(2 * float(scores[0]), float(np.diff(scores).max()), -float(last) / hazard)


def lower_epsilon(variance: float, shift: int, delta: float) -> float:
    """At least the epsilon of X + shift against X in one dimension: by the best event "X >= t"; at least 0."""
    logs = log_tails(variance)[:-1]
    upper = np.exp(logs)
    both = np.concatenate([(1.0 - upper[1:])[::-1], upper])  # from 1 - far on
    log_both = np.concatenate([np.log1p(-upper[1:])[::-1], logs])
    if shift >= len(both):
        return 0.0
    power = both[: len(both) - shift] - delta
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(power > 0, np.log(power) - log_both[shift:], 0.0)
    return max(0.0, float(found.max()) * (1 - _ROUNDING))
