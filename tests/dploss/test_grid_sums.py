"""Sums on a grid against plain convolution, and their error bounds."""

import math

import numpy as np
import pytest

from dploss.grid_sums import EXCESS, LOSS, RATIO, GridVariable, UpperTail

STEP = 0.25
each_kernel = pytest.mark.parametrize(
    "kernel", [EXCESS, LOSS, RATIO], ids=["excess", "loss", "ratio"]
)


def make_variable(seed, first=1, mass=1.0):
    weights = np.random.default_rng(seed).random(9)
    return GridVariable(first=first, weights=mass * weights / weights.sum(), step=STEP)


def convolve(kernel, variables, threshold):
    """Return E g(S, threshold) by adding one summand after another; every term is
    positive, so that it is accurate.
    """
    first, weights = 0, np.ones(1)
    for variable, count in variables:
        for _ in range(count):
            weights = np.convolve(weights, variable.weights)
            first += variable.first
    values = (first + np.arange(len(weights))) * STEP
    is_above = values > threshold
    values, weights = values[is_above], weights[is_above]
    gains = {
        EXCESS: values - threshold,
        LOSS: -np.expm1(threshold - values),
        RATIO: 1 - threshold / values,
    }
    return float(gains[kernel] @ weights)


@each_kernel
@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.8, 0.95])
def test_upper_tail_of_a_sum_is_within_its_stated_error(kernel, fraction):
    """From the middle down to tails of about 1e-40. The reference convolution has a
    rounding error of its own.
    """
    variables = [(make_variable(0), 25), (make_variable(1, first=2), 5)]
    largest = sum(
        (variable.first + len(variable.weights) - 1) * count
        for variable, count in variables
    )
    threshold = fraction * largest * STEP
    expected = convolve(kernel, variables, threshold)
    tail = UpperTail(variables, around=threshold, kernel=kernel)
    value, error = tail.value(threshold)
    assert abs(value - expected) <= error + 1e-12 * expected
    assert error <= 1e-6 * expected


@each_kernel
@pytest.mark.parametrize("threshold", [20.0, 30.0, 45.0, 55.0])
def test_upper_tail_of_a_sum_holds_far_from_where_it_is_sharp(kernel, threshold):
    variables = [(make_variable(2), 30)]
    tail = UpperTail(variables, around=45.0, kernel=kernel)
    value, error = tail.value(threshold)
    expected = convolve(kernel, variables, threshold)
    assert abs(value - expected) <= error + 1e-12 * expected


def test_upper_tail_of_a_sum_counts_missing_mass_as_nothing():
    values = [
        UpperTail([(make_variable(3, mass=mass), 4)], around=6.0, kernel=LOSS).value(
            6.0
        )
        for mass in (1.0, 0.5)
    ]
    assert values[1][0] == pytest.approx(values[0][0] / 16, rel=1e-9)


def test_upper_tail_of_a_sum_is_unknown_far_below():
    tail = UpperTail([(make_variable(4), 400)], around=850.0, kernel=EXCESS)
    value, error = tail.value(-1e9)
    assert math.isinf(value)
    assert math.isinf(error)


@pytest.mark.parametrize(
    ("weights", "step"), [(np.zeros(3), 1.0), (np.ones((2, 2)), 1.0), (np.ones(2), 0.0)]
)
def test_grid_variable_refuses_empty_weights(weights, step):
    with pytest.raises(ValueError, match="grid variable"):
        GridVariable(first=0, weights=weights, step=step)
