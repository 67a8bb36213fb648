"""Epsilon of one Gaussian by definition; tails of the normal against mpmath."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from dploss.gaussian import gaussian_delta, gaussian_epsilon, upper_tail
from tests.dploss.helpers import exact_tail, relative_errors


def test_gaussian_epsilon_inverts_the_definition_of_delta():
    """P(L > eps) - e^eps Q(L > eps), L = (x - 1/2) / z^2."""
    for z, epsilon in ((0.5, 3.0), (1.0, 1.0), (4.0, 0.1)):
        cut = 0.5 + epsilon * z**2
        delta = ndtr(-(cut - 1) / z) - math.exp(epsilon) * ndtr(-cut / z)
        assert gaussian_delta(z, epsilon) == pytest.approx(delta, rel=1e-9)
        assert gaussian_epsilon(z, delta) == pytest.approx(epsilon, rel=1e-9)
    assert gaussian_epsilon(1.0, 0.5) == 0.0  # the total variation distance is 0.383


@pytest.mark.parametrize(("low", "high"), [(-8, 0), (0, 2), (2, 8), (8, 20), (20, 37)])
def test_upper_tail_is_within_its_stated_error(low, high):
    """Far out the error is above any margin that is fixed: 1e-13 at 20 to 37."""
    positions = np.random.default_rng(0).uniform(low, high, 400)
    tails, stated = upper_tail(positions)
    errors = relative_errors(tails, map(exact_tail, positions))
    assert (errors <= stated).all()
    assert stated.max() < 5e-13


def test_upper_tail_states_the_error_of_a_place_that_is_off():
    positions, offset = np.linspace(-3, 30, 50), 1e-7
    tails, stated = upper_tail(positions, offset)
    for moved in (positions - offset, positions + offset):
        assert (relative_errors(tails, map(exact_tail, moved)) <= stated).all()


def test_upper_tail_of_a_certain_event_has_no_error():
    tails, stated = upper_tail(np.array([-np.inf, np.inf]), 1.0)
    assert tails.tolist() == [1.0, 0.0]
    assert stated.max() < 1e-14
