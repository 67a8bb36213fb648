"""Sums on a grid against plain convolution, and their error bounds."""

import math

import numpy as np
import pytest

from dpsum.accounting.grid_sums import EXCESS, LOSS, RATIO, GridVariable, UpperTail

STEP = 0.25


def law(seed, size=9):
    weights = np.random.default_rng(seed).random(size)
    return weights / weights.sum()


def direct(kernel, parts, at):
    """E g(S, at) by convolving one summand after another: every term is positive, so it
    is accurate.
    """
    first, weights = 0, np.ones(1)
    for part, count in parts:
        for _ in range(count):
            weights, first = np.convolve(weights, part.weights), first + part.first
    values = (first + np.arange(len(weights))) * STEP
    above = values > at
    values, weights = values[above], weights[above]
    gains = {EXCESS: values - at, LOSS: -np.expm1(at - values), RATIO: 1 - at / values}
    return float(gains[kernel] @ weights)


@pytest.mark.parametrize(
    "kernel", [EXCESS, LOSS, RATIO], ids=["excess", "loss", "ratio"]
)
@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.8, 0.95])
def test_tails_agree_with_direct_convolution_within_the_stated_error(kernel, fraction):
    """From the middle down to tails of 1e-40 or so: relative to 1e-9, with an error
    bound that holds and is small.
    """
    parts = [
        (GridVariable(first=1, weights=law(0), step=STEP), 25),
        (GridVariable(first=2, weights=law(1), step=STEP), 5),
    ]
    at = (
        fraction
        * sum((part.first + len(part.weights) - 1) * count for part, count in parts)
        * STEP
    )
    wanted = direct(kernel, parts, at)
    value, error = UpperTail(parts, around=at, kernel=kernel).value(at)
    # The reference convolution has a rounding error of its own.
    assert abs(value - wanted) <= error + 1e-12 * wanted
    assert error <= 1e-6 * wanted


@pytest.mark.parametrize(
    "kernel", [EXCESS, LOSS, RATIO], ids=["excess", "loss", "ratio"]
)
def test_it_holds_far_from_where_it_is_sharp(kernel):
    part = GridVariable(first=1, weights=law(2), step=STEP)
    tail = UpperTail([(part, 30)], around=45.0, kernel=kernel)
    for at in (20.0, 30.0, 45.0, 55.0):
        value, error = tail.value(at)
        wanted = direct(kernel, [(part, 30)], at)
        assert abs(value - wanted) <= error + 1e-12 * wanted


def test_missing_mass_contributes_nothing():
    whole = GridVariable(first=1, weights=law(3), step=STEP)
    half = GridVariable(first=1, weights=0.5 * law(3), step=STEP)
    full, _ = UpperTail([(whole, 4)], around=6.0, kernel=LOSS).value(6.0)
    less, _ = UpperTail([(half, 4)], around=6.0, kernel=LOSS).value(6.0)
    assert less == pytest.approx(full / 16, rel=1e-9)


def test_far_below_it_says_that_it_knows_nothing():
    part = GridVariable(first=1, weights=law(4), step=STEP)
    value, error = UpperTail([(part, 400)], around=850.0, kernel=EXCESS).value(-1e9)
    assert math.isinf(value) and math.isinf(error)


@pytest.mark.parametrize(
    ("weights", "step"), [(np.zeros(3), 1.0), (np.ones((2, 2)), 1.0), (np.ones(2), 0.0)]
)
def test_empty_variables_are_refused(weights, step):
    with pytest.raises(ValueError, match="grid variable"):
        GridVariable(first=0, weights=weights, step=step)
