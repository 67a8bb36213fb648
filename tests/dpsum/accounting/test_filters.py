"""The Renyi filter: one order is the conversion itself, several cost little, and an
adversary gains nothing.
"""

import math

import numpy as np
import pytest

from dpsum.accounting import renyi
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.accounting.filters import (
    HOLDING_ORDERS,
    filter_order,
    filtered_epsilon,
    keeps,
    order_budgets,
)

CLAIMED_ORDERS = WHOLE_ORDERS.orders
RATE, DELTA = 78 / 6000, 1e-5


def test_one_order_is_the_tight_conversion_of_its_budget():
    for order in (2, 9, 40):
        budget = np.array([0.7])
        assert filtered_epsilon(budget, (order,), DELTA) == pytest.approx(
            renyi.epsilon_of(budget, (order,), DELTA, tight=True), rel=1e-9
        )
        back = order_budgets(2.0, (order,), DELTA, tight=True)
        if back[0] > 0:
            assert filtered_epsilon(back, (order,), DELTA) == pytest.approx(
                2.0, abs=1e-9
            )


def test_the_papers_rule_of_many_orders_is_a_filter_too():
    """The looser conversion leaves room for all 63 orders together: the stated 2 holds
    for noise chosen on the way.
    """
    budgets = order_budgets(2.0, CLAIMED_ORDERS, DELTA, tight=False)
    found = filtered_epsilon(budgets, CLAIMED_ORDERS, DELTA)
    assert 1.99 < found < 2.0
    # By the tighter conversion each order alone takes all of delta, so together they
    # cost up to log 2 more.
    tight = order_budgets(2.0, CLAIMED_ORDERS, DELTA, tight=True)
    assert 2.2 < filtered_epsilon(tight, CLAIMED_ORDERS, DELTA) < 2.0 + math.log(2)


def test_the_order_is_that_at_which_the_first_noise_would_last_longest():
    (order,) = filter_order(4.0, RATE, HOLDING_ORDERS, epsilon=2.0, delta=DELTA)
    cost = renyi.renyi(4.0, RATE, HOLDING_ORDERS)
    lots = [
        max(
            n
            for n in (10_000, 14_000, 17_000, 18_000, 19_000, 20_000, 30_000)
            if n == 10_000
            or renyi.epsilon_of(np.array([n * cost[a - 2]]), (a,), DELTA, tight=True)
            <= 2.0
        )
        for a in (order, order // 2, order * 2)
    ]
    assert lots[0] == max(lots)
    best = order_budgets(2.0, HOLDING_ORDERS, DELTA, tight=True) / cost
    assert best[order - 2] == best.max()


def test_what_was_spent_must_be_within_one_orders_budget():
    budgets = np.array([1.0, 2.0])
    assert keeps(np.array([3.0, 2.0]), budgets) and keeps(
        np.array([1.0 + 1e-12, 9.0]), budgets
    )
    assert not keeps(np.array([1.01, 2.01]), budgets)
    assert not keeps(np.array([0.0]), np.array([-0.1]))


def test_an_adversary_who_chooses_the_noise_does_not_break_it():
    """Gaussian releases whose noise follows the loss so far, stopped by the filter: E_P
    (1 - e^(eps - L))+ <= delta.

    200,000 runs, 5 standard errors, false alarm 1e-6. The adversary spends all that is
    left once the loss is high: at order 6 with a budget of 0.5. A filter that is not
    kept (twice the budget) is refuted.
    """
    order, budget, delta = 6, 0.5, 1e-2
    epsilon = filtered_epsilon(np.array([budget]), (order,), delta)
    for allowed, holds in ((budget, True), (3 * budget, False)):
        rng = np.random.default_rng(0)
        loss, left = np.zeros(200_000), np.full(200_000, allowed)
        for step in range(4):
            # rho = order mu^2 / 2; a loss above its mean is pushed on with all that is
            # left, else with little.
            share = np.where(loss > 0.3, 1.0, 0.25 if step < 3 else 1.0)
            mu = np.sqrt(2 * left * share / order)
            left = left * (1 - share)
            loss += mu * rng.standard_normal(len(loss)) + mu * mu / 2
        gains = -np.expm1(np.minimum(epsilon - loss, 0.0))
        error = 5 * gains.std() / math.sqrt(len(gains))
        assert (gains.mean() <= delta + error) == holds
