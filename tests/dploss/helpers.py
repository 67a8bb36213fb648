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
    errors = []
    with mpmath.workdps(DIGITS):
        for value, exact in zip(values, exact_values, strict=True):
            error = abs(mpmath.mpf(float(value)) / exact - 1)
            errors.append(float(error))
    return np.array(errors)
