"""Ends of epsilon of a pair with two finite losses, whose composition is a binomial."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from dploss.compositions import Stage, lower_end, upper_end
from dploss.fine_brackets import refined

ROUNDS, DELTA = 20, 1e-3
UP, CERTAIN = 0.55, 4e-5
"""Chances of the larger finite loss, and of an infinite one."""


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
