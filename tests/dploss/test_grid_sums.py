"""Sums on a grid against plain convolution, and their error bounds."""

import math

import numpy as np
import pytest

from dploss.grid_sums import EXCESS, LOSS, RATIO, GridVariable, UpperTail

STEP = 0.25


def make_variable(seed, first=1, mass=1.0):
    weights = np.random.default_rng(seed).random(9)
    return GridVariable(first=first, weights=mass * weights / weights.sum(), step=STEP)


def convolve(kernel, variables, threshold):
    """Return E g(S, threshold) by adding one summand after another; every term is
    positive, so that it is accurate.
    """
    first = 0
    weights = np.ones(1)
    for variable, count in variables:
        for _ in range(count):
            weights = np.convolve(weights, variable.weights)
            first += variable.first
    values = (first + np.arange(len(weights))) * STEP
    is_above = values > threshold
    values = values[is_above]
    weights = weights[is_above]
    gains = {
        EXCESS: values - threshold,
        LOSS: -np.expm1(threshold - values),
        RATIO: 1 - threshold / values,
    }
    return float(gains[kernel] @ weights)


@pytest.mark.parametrize("kernel", [EXCESS, LOSS, RATIO])
@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.8, 0.95])
def test_upper_tail_of_a_sum_is_within_its_stated_error(kernel, fraction):
    """From the middle down to tails of about 1e-40, sharp at one threshold and valid
    at all. The reference convolution has a rounding error of its own.
    """
    variables = [(make_variable(0), 25), (make_variable(1, first=2), 5)]
    largest = STEP * (25 * 9 + 5 * 10)
    near = fraction * largest
    tail = UpperTail(variables, around=near, kernel=kernel)
    for threshold in (0.3 * largest, near, 0.7 * largest, 0.97 * largest):
        expected = convolve(kernel, variables, threshold)
        value, error = tail.value(threshold)
        assert math.isinf(value) or abs(value - expected) <= error + 1e-12 * expected
    value, error = tail.value(near)
    assert error <= 1e-6 * value


def test_upper_tail_of_a_sum_counts_missing_mass_as_nothing():
    whole, half = (
        UpperTail([(make_variable(3, mass=mass), 4)], around=6.0, kernel=LOSS)
        for mass in (1.0, 0.5)
    )
    assert half.value(6.0)[0] == pytest.approx(whole.value(6.0)[0] / 16, rel=1e-9)


def test_upper_tail_of_a_sum_is_unknown_far_below():
    tail = UpperTail([(make_variable(4), 400)], around=850.0, kernel=EXCESS)
    assert tail.value(-1e9) == (math.inf, math.inf)
