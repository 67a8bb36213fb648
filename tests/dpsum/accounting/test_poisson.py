"""Poisson accounting: the table of PRIVACY.md, dp-accounting, closed forms, limits."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from dploss.gaussian import gaussian_epsilon
from dploss.renyi import renyi_epsilon
from dpsum.accounting.analyses import poisson
from dpsum.accounting.claims import TF_PRIVACY_ORDERS
from tests.dpsum.accounting.helpers import (
    bracket,
    dp_accounting_epsilon,
    sampled_gaussian_epsilon,
)
from tools.published_epsilons import DP_ACCOUNTING_ORDERS, renyi_epsilon_tight

Q = 1600 / 400_000
T = 250
DELTA = 1e-6


@pytest.mark.parametrize(
    ("z", "claimed", "tight", "proven", "one_round", "replace_one"),
    [
        (1.0, 1.517, 1.147, 0.498, 4.887, 10.997),
        (2.0, 0.355, 0.242, 0.134, 2.254, 4.887),
        (3.0, 0.238, 0.155, 0.081, 1.448, 3.098),
    ],
)
def test_poisson_one_pass_table(z, claimed, tight, proven, one_round, replace_one):
    """PRIVACY.md: N = 400,000, L = 1,600, T = 250, delta = 1e-6."""
    schedule = ((z, T),)
    low, high = bracket(poisson, schedule, Q, DELTA)
    values = [
        renyi_epsilon(schedule, Q, DELTA, TF_PRIVACY_ORDERS),
        renyi_epsilon_tight(schedule, Q, DELTA, DP_ACCOUNTING_ORDERS),
        high,
        gaussian_epsilon(z, DELTA),
        gaussian_epsilon(z / 2, DELTA),
    ]
    expected = [claimed, tight, proven, one_round, replace_one]
    assert [round(value, 3) for value in values] == expected
    assert high - 1e-3 <= low <= high <= values[1] <= values[0] < values[3]


@pytest.mark.parametrize(
    ("schedule", "q"),
    [
        (((1.0, T),), Q),
        (((1.0, 40),), 0.025),
        (((2.0, 979),), 0.013),
        (((3.0, 60), (2.0, 30), (1.2, 5)), 0.02),
    ],
)
def test_poisson_agrees_with_dp_accounting(schedule, q):
    """Its pessimistic composition on a grid of 1e-4 is an upper end of the same."""
    stages = [(z, rounds, q) for z, rounds in schedule]
    expected = dp_accounting_epsilon(stages, DELTA)
    low, high = bracket(poisson, schedule, q, DELTA)
    assert low <= expected
    assert high == pytest.approx(expected, abs=1e-3)
    reordered = poisson.upper_epsilon(schedule[::-1], q, DELTA)
    assert reordered == pytest.approx(high, abs=1e-6)


@pytest.mark.parametrize("z", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("q", [0.001, 0.1, 0.7])
def test_poisson_of_one_round_is_a_closed_form(z, q):
    low, high = bracket(poisson, ((z, 1),), q, 1e-6)
    assert low <= sampled_gaussian_epsilon(z, q, "1e-6") <= high <= low + 2e-3


def test_poisson_of_everyone_is_composed_gaussians():
    gaussian = gaussian_epsilon(1.0, DELTA)
    assert bracket(poisson, ((4.0, 16),), 1.0, DELTA) == (gaussian, gaussian)
    almost = poisson.upper_epsilon(((4.0, 16),), 1 - 1e-7, DELTA)
    assert almost == pytest.approx(gaussian, abs=2e-3)
    assert poisson.upper_epsilon((), 0.5, DELTA) == 0.0


@pytest.mark.parametrize("end", [poisson.upper_epsilon, poisson.lower_epsilon])
def test_poisson_is_monotone(end):
    """In z, rounds, rate and delta."""
    epsilon = end(((1.0, 40),), 0.02, DELTA)
    assert end(((1.2, 40),), 0.02, DELTA) < epsilon < end(((0.9, 40),), 0.02, DELTA)
    assert end(((1.0, 20),), 0.02, DELTA) < epsilon < end(((1.0, 80),), 0.02, DELTA)
    assert end(((1.0, 40),), 0.01, DELTA) < epsilon < end(((1.0, 40),), 0.03, DELTA)
    assert end(((1.0, 40),), 0.02, 1e-5) < epsilon < end(((1.0, 40),), 0.02, 1e-7)


@pytest.mark.parametrize(("k", "q", "rounds"), [(2, 0.05, 20), (7, 0.02, 40)])
def test_poisson_of_several_clients_agrees_with_dp_accounting(k, q, rounds):
    """Its pessimistic mixture of Gaussians is an upper end; coarse, since a fine one
    takes it minutes.
    """
    counts = np.arange(k + 1.0)
    chances = stats.binom.pmf(counts, k, q)
    options = {"value_discretization_interval": 2e-2, "log_mass_truncation_bound": -36}
    one_round = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        2.0, counts, chances, **options
    )
    expected = one_round.self_compose(rounds).get_epsilon_for_delta(1e-5)
    low, high = bracket(poisson, ((2.0, rounds),), q, 1e-5, k)
    assert low <= expected
    assert high == pytest.approx(expected, rel=1e-2)
    assert high - low <= 4e-3 * high
