"""Searches against dp-accounting's repeat-and-select events, and by hand."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event, rdp

from dpfedbench.errors import BenchError
from dpsum.accounting import renyi
from dpsum.accounting.tuning import Search, searched_divergences, searched_epsilon

ORDERS = tuple(range(2, 65))


@pytest.mark.parametrize(
    ("number", "shape"), [("geometric", 1.0), ("poisson", math.inf)]
)
@pytest.mark.parametrize(("z", "runs"), [(4.0, 10), (20.0, 3), (2.0, 100)])
def test_random_numbers_of_runs_agree_with_dp_accounting(number, shape, z, runs):
    accountant = rdp.RdpAccountant(ORDERS)
    accountant.compose(
        dp_event.RepeatAndSelectDpEvent(dp_accounting.GaussianDpEvent(z), runs, shape)
    )
    theirs = accountant.get_epsilon(1e-6)
    search = Search(runs=runs, data="private", number=number)
    ours = searched_epsilon(np.array(ORDERS) / (2 * z * z), ORDERS, search, 1e-6)
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_a_fixed_number_of_runs_is_a_composition():
    divergences = renyi.renyi(1.0, 0.01, ORDERS)
    search = Search(runs=7, data="private")
    wanted = renyi.epsilon_of(7 * divergences, ORDERS, 1e-6, tight=True)
    assert searched_epsilon(divergences, ORDERS, search, 1e-6) == wanted


def test_a_geometric_search_by_hand():
    """Theorem 2 with eta = 1, one order: rho + log K / (a - 1) + 2 min((1 - 1/a) rho +
    log K / a, log K).
    """
    found = searched_divergences(
        np.array([0.3]), (4,), Search(runs=5, data="private", number="geometric")
    )
    assert found[0] == pytest.approx(
        0.3 + math.log(5) / 3 + 2 * min(0.75 * 0.3 + math.log(5) / 4, math.log(5))
    )


def test_a_search_never_costs_less_than_its_run_and_more_runs_cost_more():
    divergences = np.array(ORDERS) / 18.0
    for number in ("fixed", "geometric", "poisson"):
        ends = [
            searched_epsilon(
                divergences, ORDERS, Search(runs=k, data="private", number=number), 1e-6
            )
            for k in (1, 2, 10, 100)
        ]
        assert ends == sorted(ends)
        assert ends[0] >= renyi.epsilon_of(divergences, ORDERS, 1e-6, tight=True)


@pytest.mark.parametrize(
    "values",
    [
        {"runs": 0, "data": "private"},
        {"runs": 1, "data": "mine"},
        {"runs": 1, "data": "public", "number": "many"},
    ],
)
def test_bad_searches_are_refused(values):
    with pytest.raises(BenchError, match="tuning"):
        Search.of(values)
