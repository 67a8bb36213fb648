"""Epsilon by Renyi divergences: filters of noise, and searches for hyper-parameters."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event, rdp

from dploss import renyi
from dpsum import DpsumError
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.accounting.filters import Filter, keeps, order_budgets
from dpsum.accounting.tuning import Search, searched_epsilon
from tests.dpsum.accounting.helpers import delta_interval

CLAIMED_ORDERS = WHOLE_ORDERS.orders
ORDERS = tuple(range(2, 65))
DELTA = 1e-5


def filtered_epsilon(budgets, orders, delta):
    return Filter(orders=orders, budgets=budgets).epsilon(delta)


@pytest.mark.parametrize("order", [2, 9, 40])
def test_filter_of_one_order_is_the_tight_conversion(order):
    budget = np.array([0.7])
    expected = renyi.epsilon_of(budget, (order,), DELTA, tight=True)
    epsilon = filtered_epsilon(budget, (order,), DELTA)
    assert epsilon == pytest.approx(expected, rel=1e-9)
    budget = order_budgets(2.0, (order,), DELTA, tight=True)
    if budget[0] > 0:
        epsilon = filtered_epsilon(budget, (order,), DELTA)
        assert epsilon == pytest.approx(2.0, abs=1e-9)


def test_filter_of_many_orders_needs_the_looser_conversion():
    """By the tight conversion each order takes all of delta, so that together they cost
    up to log 2 more than the stated 2.
    """
    loose, tight = (
        order_budgets(2.0, CLAIMED_ORDERS, DELTA, tight=is_tight)
        for is_tight in (False, True)
    )
    assert 1.99 < filtered_epsilon(loose, CLAIMED_ORDERS, DELTA) < 2.0
    assert 2.2 < filtered_epsilon(tight, CLAIMED_ORDERS, DELTA) < 2.0 + math.log(2)


def test_filter_keeps_within_the_budget_of_one_order():
    budgets = np.array([1.0, 2.0])
    assert keeps(np.array([3.0, 2.0]), budgets)
    assert keeps(np.array([1.0 + 1e-12, 9.0]), budgets)
    assert not keeps(np.array([1.01, 2.01]), budgets)
    assert not keeps(np.array([0.0]), np.array([-0.1]))


@pytest.mark.parametrize(("factor", "is_kept"), [(1, True), (3, False)])
def test_filter_holds_against_an_adversary_who_chooses_the_noise(factor, is_kept):
    """Gaussian releases whose noise follows the loss so far, at order 6: the adversary
    spends all that is left once the loss is high. 200,000 runs, 5 standard errors,
    false alarm 1e-6. Three times the budget is refuted.
    """
    order = 6
    budget = 0.5
    delta = 1e-2
    epsilon = filtered_epsilon(np.array([budget]), (order,), delta)
    rng = np.random.default_rng(0)
    losses = np.zeros(200_000)
    budgets_left = np.full(200_000, factor * budget)
    for usual_share in (0.25, 0.25, 0.25, 1.0):
        shares = np.where(losses > 0.3, 1.0, usual_share)
        mu = np.sqrt(2 * budgets_left * shares / order)
        budgets_left *= 1 - shares
        losses += mu * rng.standard_normal(len(losses)) + mu * mu / 2
    assert (delta_interval(losses, epsilon)[0] <= delta) == is_kept


# Searches


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
    epsilon = searched_epsilon(divergences, ORDERS, search, DELTA)
    assert epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)


def test_search_of_a_fixed_number_is_a_composition():
    divergences = renyi.renyi(1.0, 0.01, ORDERS)
    search = Search(runs=7, data="private")
    expected = renyi.epsilon_of(7 * divergences, ORDERS, DELTA, tight=True)
    assert searched_epsilon(divergences, ORDERS, search, DELTA) == expected


@pytest.mark.parametrize("change", [{"runs": 0}, {"data": "mine"}, {"number": "many"}])
def test_search_refuses_impossible_values(change):
    with pytest.raises(DpsumError, match="tuning"):
        Search.of({"runs": 1, "data": "private"} | change)
