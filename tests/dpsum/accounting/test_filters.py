"""The Renyi filter: its conversion, its budgets, and an adversary who chooses noise."""

import math

import numpy as np
import pytest

from dploss import renyi
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.accounting.filters import (
    filtered_epsilon,
    keeps,
    order_budgets,
)
from tests.dpsum.accounting.helpers import estimate_delta

CLAIMED_ORDERS = WHOLE_ORDERS.orders
RATE, DELTA = 78 / 6000, 1e-5


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
    order, budget, delta = 6, 0.5, 1e-2
    epsilon = filtered_epsilon(np.array([budget]), (order,), delta)
    rng = np.random.default_rng(0)
    losses = np.zeros(200_000)
    budgets_left = np.full(200_000, factor * budget)
    for step in range(4):
        usual_share = 0.25 if step < 3 else 1.0
        shares = np.where(losses > 0.3, 1.0, usual_share)
        mu = np.sqrt(2 * budgets_left * shares / order)
        budgets_left *= 1 - shares
        losses += mu * rng.standard_normal(len(losses)) + mu * mu / 2
    mean, error = estimate_delta(losses, epsilon, 5)
    assert (mean <= delta + error) == is_kept
