"""Tails of the normal distribution, each with a bound on its rounding: what a proved end is made of."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

ROUNDING = 2.0**-53
"""Of one operation, relative."""

FUNCTION = 8 * ROUNDING
"""Of numpy's exp, log, expm1 and log1p, relative: four units in the last place, which is what numpy claims."""


def upper_tail(at: np.ndarray, off: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """P(N > at) for a standard normal N, and by how much of itself it may be off.

    scipy's `ndtr` takes erfc of a = at/sqrt(2), which is exp(-a^2) times a function that is right to a few units in the
    last place. a is rounded twice and a^2 once more, so that the exponent is off by at most 5 a^2 2^-53 = 2.5 at^2
    2^-53, and exp of it by that share of itself: far out no fixed margin is enough. Taken is (16 + 3 at^2) 2^-53, about
    twice the largest error that was found against mpmath up to at = 37 (`tests/accounting/test_normal.py`).

    Where `at` itself was rounded, the tail moves by at most exp(h off) - 1 of itself, h the greatest hazard on the way,
    and the normal's hazard at x is at most max(x, 0) + 1.

    Args:
        at: float64 [n]; infinite where the tail is 0 or 1 for certain.
        off: how far `at` may be from what is meant.

    Returns:
        The tails, and their errors as shares of them, float64 [n].
    """
    out = np.where(np.isfinite(at), np.maximum(at, 0.0), 0.0)
    moved = np.where(np.isfinite(at), off, 0.0)
    with np.errstate(over="ignore"):
        moved = np.expm1((out + 1.0 + moved) * moved)
    return ndtr(-at), ROUNDING * (16.0 + 3.0 * out**2) + 1.001 * moved
