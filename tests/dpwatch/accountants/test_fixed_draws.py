"""Cohorts drawn with replacement: integrals of data sets, and one Gaussian."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from dploss.gaussian import gaussian_epsilon
from dpsum.accounting import analyses
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import fixed_size
from dpwatch.accountants.fixed_draws import lower_epsilon, upper_epsilon
from tests.dpsum.accounting.helpers import positive_root

DELTA = 1e-5


def epsilon_of_one_round(z, units, draws, contributions):
    """Return epsilon of both orders on a grid.

    One unit contributes or is changed, beside others: `contributions` is (unit's,
    changed, others').
    """
    unit, changed, rest = contributions
    counts = np.arange(draws + 1)
    chances = binom.pmf(counts, draws, 1 / units)
    x = np.linspace(-draws - 14 * z, draws + 14 * z, 200_001)

    def density(contribution):
        means = (draws - counts) * rest + counts * contribution
        laws = (norm.pdf(x, mean, z) for mean in means)
        return sum(chance * law for chance, law in zip(chances, laws, strict=True))

    first = density(unit)
    second = density(changed)

    def excess(epsilon, numerator, denominator):
        gains = np.maximum(numerator - math.exp(epsilon) * denominator, 0.0)
        return float(gains.sum() * (x[1] - x[0])) - DELTA

    return max(
        positive_root(lambda epsilon: excess(epsilon, first, second)),
        positive_root(lambda epsilon: excess(epsilon, second, first)),
    )


@pytest.mark.parametrize(
    ("z", "units", "draws"), [(1.0, 50, 10), (2.0, 5, 5), (1.5, 200, 6)]
)
def test_fixed_draws_high_end_is_above_every_data_set(z, units, draws):
    """The worst data set reaches most of the bound."""
    high = upper_epsilon(((z, 1),), units, draws, DELTA)
    worst = max(
        epsilon_of_one_round(z, units, draws, contributions)
        for contributions in ((1, 0, -1), (1, 0, 1), (1, 0, 0))
    )
    assert worst < high < 2.2 * worst
    high = upper_epsilon(((z, 1),), units, draws, DELTA, fixed_size.REPLACE_ONE)
    worst = epsilon_of_one_round(z, units, draws, (1, -1, -1))
    assert worst < high < 2.2 * worst


def test_fixed_draws_low_end_is_that_of_one_data_set():
    low = lower_epsilon(((1.0, 1),), 50, 10, DELTA)
    expected = epsilon_of_one_round(1.0, 50, 10, (1, 0, 0))
    assert low == pytest.approx(expected, rel=5e-3)
    low = lower_epsilon(((2.0, 1),), 50, 10, DELTA, fixed_size.REPLACE_ONE)
    expected = epsilon_of_one_round(2.0, 50, 10, (1, -1, -1))
    assert low == pytest.approx(expected, rel=5e-3)


def test_fixed_draws_of_one_draw_is_a_fixed_size_of_one():
    expected = fixed_size.upper_epsilon(((1.0, 5),), 1 / 20, DELTA)
    assert upper_epsilon(((1.0, 5),), 20, 1, DELTA) == pytest.approx(expected, rel=1e-6)


def test_fixed_draws_of_the_only_unit_are_one_gaussian():
    """Four draws of one unit in three rounds: z / (4 sqrt(3))."""
    expected = gaussian_epsilon(10.0 / (4 * math.sqrt(3)), DELTA)
    schedule = ((10.0, 3),)
    assert upper_epsilon(schedule, 1, 4, DELTA) == pytest.approx(expected, rel=1e-6)
    assert lower_epsilon(schedule, 1, 4, DELTA) == pytest.approx(expected, rel=1e-9)
    sampler = {"kind": "fixed-draws", "clients": 1, "cohort": 4, "rounds": 3, "rate": 4}
    events = Events.planned(schedule, sampler)
    accountant = analyses.find("gaussian", "fixed-draws")
    high = accountant.bracket(events, DELTA)[1]
    assert high == pytest.approx(expected, rel=1e-9)
    expected = gaussian_epsilon(10.0 / (8 * math.sqrt(3)), DELTA)
    ends = accountant.replaced(events, DELTA)
    assert ends == pytest.approx((expected, expected), rel=1e-9)
