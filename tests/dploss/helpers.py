"""Exact values that the tests of numerics share."""

import mpmath
import numpy as np

DIGITS = 60


def exact_tail(position):
    """Return P(N > position) of a standard normal N in 60 digits."""
    with mpmath.workdps(DIGITS):
        return mpmath.erfc(mpmath.mpf(position) / mpmath.sqrt(2)) / 2


def relative_errors(values, exact_values):
    """Return |value - exact| / exact of each value, float64 [n]."""
    with mpmath.workdps(DIGITS):
        errors = [
            abs(mpmath.mpf(float(value)) / exact - 1)
            for value, exact in zip(values, exact_values, strict=True)
        ]
    return np.array(errors, float)
