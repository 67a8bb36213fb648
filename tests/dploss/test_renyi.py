"""Renyi divergences of sampled Gaussians by quadrature, and their conversions by hand."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from dploss.renyi import epsilon_of, renyi, renyi_epsilon


def moment_by_quadrature(z, rate, order):
    """Return the divergence of (1 - q) N(0, z^2) + q N(1, z^2) from N(0, z^2)."""

    def integrand(at):
        without = stats.norm.pdf(at, 0, z)
        ratio = 1 - rate + rate * math.exp((2 * at - 1) / (2 * z**2))
        return without * ratio**order

    moment, _ = integrate.quad(integrand, -20 * z, 20 * z + order, limit=500)
    return math.log(moment) / (order - 1)


def test_divergence_of_a_sampled_gaussian_is_that_of_quadrature():
    """At fractional orders the series of dp-accounting is an upper bound."""
    orders = (2, 5, 9)
    expected = [moment_by_quadrature(1.3, 0.2, order) for order in orders]
    assert renyi(1.3, 0.2, orders) == pytest.approx(expected, rel=1e-6)
    orders = (2.5, 6.25)
    expected = np.array([moment_by_quadrature(1.3, 0.2, order) for order in orders])
    excess = renyi(1.3, 0.2, orders) / expected - 1
    assert (excess > 0).all()
    assert (excess < 0.03).all()


def test_divergence_without_sampling_is_the_gaussians():
    """alpha / (2 z^2)."""
    assert renyi(2.0, 1.0, (2, 3.5)) == pytest.approx([2 / 8, 3.5 / 8], rel=1e-12)


def test_conversions_by_hand():
    """Order 3, divergence 1, delta 1/100. Mironov: 1 + log(100) / 2. Canonne et al.
    2020, Proposition 12: besides log(1 - 1/3) - log(3) / 2.
    """
    loose = 1 + math.log(100) / 2
    tight = loose + math.log(2 / 3) - math.log(3) / 2
    divergences = np.array([1.0])
    assert epsilon_of(divergences, (3,), 0.01, tight=False) == pytest.approx(loose)
    assert epsilon_of(divergences, (3,), 0.01, tight=True) == pytest.approx(tight)


def test_conversion_takes_the_best_order_and_is_never_negative():
    """At delta = 1/e the orders 2 and 3 cost 1 and 1/2."""
    delta = math.exp(-1)
    divergences = np.array([0.25, 0.5])
    assert epsilon_of(divergences, (2, 3), delta, tight=False) == pytest.approx(1.0)
    divergences = np.array([0.25, 1.5])
    assert epsilon_of(divergences, (2, 3), delta, tight=False) == pytest.approx(1.25)
    assert epsilon_of(np.array([0.0]), (100,), 0.9, tight=True) == 0.0


def test_divergences_of_rounds_with_different_noise_add_up():
    """Two rounds of z = 1 and one of z = 2 at order 2: 2 x 1 + 1/4, plus log 10."""
    epsilon = renyi_epsilon(((1.0, 2), (2.0, 1)), 1.0, 0.1, (2,))
    assert epsilon == pytest.approx(2.25 + math.log(10))
