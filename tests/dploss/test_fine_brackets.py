"""Ends of epsilon of many rounds, on the usual grid and on fine ones.

Expected values are from mpmath for one round, from dp-accounting's distribution of the
privacy loss, and for two finite losses a binomial.
"""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq
from scipy.stats import binom

from dploss.compositions import Stage, lower_end, upper_end
from dploss.fine_brackets import is_wide, refined
from dploss.gaussian import gaussian_epsilon
from dpsum.accounting.analyses import poisson
from tests.dpsum.accounting.helpers import sampled_gaussian_epsilon


def bracket(schedule, q, delta):
    low = poisson.lower_epsilon(schedule, q, delta)
    return low, poisson.upper_epsilon(schedule, q, delta)


@pytest.mark.parametrize(
    ("z", "q", "delta"),
    [
        (1.0, 0.5, "1e-60"),
        (1.0, 0.5, "1e-300"),
        (1.0, 0.5, "1e-301"),
        (1.0, 0.5, "1e-305"),
        (0.05, 0.1, "1e-5"),
        (0.1, 1e-6, "1e-10"),
        (1000.0, 0.3, "1e-5"),
    ],
)
def test_bracket_of_one_round_is_narrow_around_the_exact_value(z, q, delta):
    """Below delta = 1e-300 there is no grid, and the low end is that of 1e-300."""
    exact = sampled_gaussian_epsilon(z, q, delta)
    low, high = bracket(((z, 1),), q, float(delta))
    assert low <= exact <= high
    if float(delta) < 1e-300:
        assert 0.95 * exact < low
        assert high < 1.05 * exact
    else:
        assert not is_wide(low, high)


@pytest.mark.parametrize(
    ("z", "q", "rounds", "grid_step"),
    [(0.1, 0.05, 60, 0.05), (0.15, 0.3, 20, 0.05), (4.0, 1 / 3000, 10_000, 1e-5)],
)
def test_bracket_agrees_with_dp_accounting(z, q, rounds, grid_step):
    """Its distribution is pessimistic: never below the exact value."""
    one_round = privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=grid_step
    )
    expected = one_round.self_compose(rounds).get_epsilon_for_delta(1e-5)
    low, high = bracket(((z, rounds),), q, 1e-5)
    assert low <= expected
    assert not is_wide(low, high)
    assert high == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("z", "q", "rounds", "delta"),
    [
        (1.0, 0.01, 10_000, 1e-60),
        (0.05, 1e-6, 10**6, 1e-5),
        (0.05, 0.5, 10**6, 1e-5),
        # Faster: the other three.
        pytest.param(0.2, 1e-4, 10**6, 1e-10, marks=pytest.mark.slow),
    ],
)
def test_bracket_of_many_rounds_is_narrow(z, q, rounds, delta):
    low, high = bracket(((z, rounds),), q, delta)
    assert 0.0 <= low <= high <= gaussian_epsilon(z * rounds**-0.5, delta)
    assert not is_wide(low, high)


@pytest.mark.parametrize(
    ("z", "delta", "least", "most"),
    [
        # Faster: the other case.
        pytest.param(1.0, 1e-6, 0.0, 0.0037, marks=pytest.mark.slow),
        (0.5, 1e-5, 0.025, 0.028),
    ],
)
def test_ends_take_the_least_high_end(z, delta, least, most):
    """Finer grids are tried where one participation in a million rounds decides."""
    low, high = poisson.ends(((z, 10**6),), 1e-6, delta)
    assert least < low <= high < most


@pytest.mark.parametrize(
    ("z", "q", "rounds"), [(1.0, 0.004, 250), (0.5, 0.05, 40), (3.0, 0.2, 100)]
)
def test_fine_bracket_overlaps_the_usual_one(z, q, rounds):
    low, high = bracket(((z, rounds),), q, 1e-6)
    stage = poisson.stage_of(((z, rounds),), q)
    fine_low, fine_high = refined((stage,), 1e-6, 0.0, 1e4)
    assert max(low, fine_low) <= min(high, fine_high)
    assert not is_wide(fine_low, fine_high)


def test_composed_ends_of_one_noise_in_two_stages_are_one_schedule():
    stages = (((0.1, 20),), 0.05), (((0.1, 40),), 0.05)
    low, high = poisson.composed_ends(stages, 1e-5)
    expected = poisson.upper_epsilon(((0.1, 60),), 0.05, 1e-5)
    assert low <= expected
    assert not is_wide(low, high)
    assert high == pytest.approx(expected, rel=0.01)


ROUNDS = 20
DELTA = 1e-3
UP = 0.55  # chance of the larger finite loss
CERTAIN = 4e-5  # chance of an infinite loss


class TwoLosses:
    """P is 1 with chance 0.55, else 0, and reveals the unit at times; Q is turned."""

    missing = CERTAIN
    low, high = (
        math.log((1 - CERTAIN) * ratio) for ratio in ((1 - UP) / UP, UP / (1 - UP))
    )

    def tails(self, losses):
        is_above = np.stack([losses < self.low, losses < self.high]).astype(float)
        first = (1 - CERTAIN) * np.array([1 - UP, UP]) @ is_above
        second = np.array([UP, 1 - UP]) @ is_above
        return first, second, np.full(len(losses), 1e-15)

    def range(self, mass, most=math.inf):
        return self.low, self.high


def exact_delta(epsilon):
    ups = np.arange(ROUNDS + 1)
    losses = ups * TwoLosses.high + (ROUNDS - ups) * TwoLosses.low
    finite = (1 - CERTAIN) ** ROUNDS
    gains = -np.expm1(np.minimum(epsilon - losses, 0.0))
    return 1 - finite + finite * binom.pmf(ups, ROUNDS, UP) @ gains


def test_ends_of_two_losses_and_an_infinite_one_hold_on_either_grid():
    """The infinite loss has four fifths of delta."""
    law = TwoLosses()
    stage = Stage(((1.0, ROUNDS),), 0.1, lambda z, mass: [law])
    exact = brentq(lambda epsilon: exact_delta(epsilon) - DELTA, 0.0, 10.0)
    high = upper_end([stage], DELTA, ceiling=10.0)
    low = lower_end([stage], DELTA, upper=high)
    fine_low, fine_high = refined((stage,), DELTA, 0.0, 10.0)
    assert max(low, fine_low) <= exact <= min(high, fine_high)
    assert (high, fine_high) == pytest.approx((exact, exact), rel=0.01)
    # A low end leaves the infinite loss out.
    finite = brentq(lambda epsilon: exact_delta(epsilon) - DELTA - 8e-4, 0.0, 10.0)
    assert (low, fine_low) == pytest.approx((finite, finite), rel=0.02)
