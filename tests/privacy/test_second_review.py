"""Findings of the second review in docs/privacy.md."""

import numpy as np
import pytest

from dpsum.accounting import tilted


def test_monte_carlo_bounds_hold_at_all_epsilons_of_the_list():
    """Three ends at each of the list's epsilons and a hundred looks fail together with
    a chance of at most delta / 1,000.
    """
    delta = 1e-6
    pair = tilted.Pair(np.eye(3), 3, delta)
    assert 100 * 3 * tilted._STEPS * pair._doubt <= delta / 1000


@pytest.mark.parametrize("doubt", [0.05])
def test_bernstein_end_fails_no_more_often_than_stated(doubt):
    """2,000 means of 200 draws; more than 5 % + 4 standard errors: false alarm 3e-5."""
    rng = np.random.default_rng(0)
    draws = (rng.random((2000, 200)) < 0.1).astype(float)
    ends = [tilted._bernstein(values, 1.0, doubt) for values in draws]
    missed = sum(not low <= 0.1 <= high for low, high in ends)
    assert missed / 2000 <= doubt + 4 * (doubt * (1 - doubt) / 2000) ** 0.5
