"""Searches against dp-accounting's repeat-and-select events, and by hand."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event, rdp

from dploss import renyi
from dpsum import DpsumError
from dpsum.accounting.tuning import Search, searched_divergences, searched_epsilon

ORDERS = tuple(range(2, 65))


@pytest.mark.parametrize(
    ("number", "shape"), [("geometric", 1.0), ("poisson", math.inf)]
)
@pytest.mark.parametrize(("z", "runs"), [(4.0, 10), (20.0, 3), (2.0, 100)])
def test_search_of_a_random_number_agrees_with_dp_accounting(number, shape, z, runs):
    accountant = rdp.RdpAccountant(ORDERS)
    gaussian = dp_accounting.GaussianDpEvent(z)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(gaussian, runs, shape))
    search = Search(runs=runs, data="private", number=number)
    divergences = np.array(ORDERS) / (2 * z * z)
    epsilon = searched_epsilon(divergences, ORDERS, search, 1e-6)
    assert epsilon == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-6)


def test_search_of_a_fixed_number_is_a_composition():
    divergences = renyi.renyi(1.0, 0.01, ORDERS)
    search = Search(runs=7, data="private")
    expected = renyi.epsilon_of(7 * divergences, ORDERS, 1e-6, tight=True)
    assert searched_epsilon(divergences, ORDERS, search, 1e-6) == expected


def test_geometric_search_by_hand():
    """Theorem 2 with eta = 1, one order: rho + log K / (a - 1) + 2 min((1 - 1/a) rho +
    log K / a, log K).
    """
    search = Search(runs=5, data="private", number="geometric")
    (divergence,) = searched_divergences(np.array([0.3]), (4,), search)
    least = min(0.75 * 0.3 + math.log(5) / 4, math.log(5))
    assert divergence == pytest.approx(0.3 + math.log(5) / 3 + 2 * least)


@pytest.mark.parametrize("change", [{"runs": 0}, {"data": "mine"}, {"number": "many"}])
def test_search_refuses_impossible_values(change):
    with pytest.raises(DpsumError, match="tuning"):
        Search.of({"runs": 1, "data": "private"} | change)
