"""A budget that not even one round fits is refused when the plan is made."""

import pytest

from dpfedbench.parts.budget import least_delta
from dpsum.accounting.calibration import epsilon_after
from dpsum.accounting.gaussian import gaussian_delta
from tests.dpfedbench.training.conftest import make_config

from .conftest import check_refused


@pytest.mark.parametrize("z", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("epsilon", [0.001, 0.5, 4.0])
def test_least_delta_at_rate_one_is_the_gaussian_mechanisms(
    z: float, epsilon: float
) -> None:
    expected = gaussian_delta(z, epsilon)
    assert least_delta(z, 1.0, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-14)


def test_least_delta_takes_extreme_numbers() -> None:
    assert least_delta(1e6, 1e-7, 1e6) == 0.0
    assert 0 <= least_delta(1e-3, 1.0, 499.0) <= 1
    assert least_delta(1e6, 1e-7, 1e-3) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("kind", ["one-pass", "poisson", "balls-and-bins"])
def test_budget_below_the_account_of_one_round_is_refused(kind: str) -> None:
    """The limit is exact to within the margin of the account's grid."""
    sizes = {
        "clients": 48,
        "cohort": 4,
        "rounds": 12,
        "rate": 4 / 48,
    }
    spent = epsilon_after("proven", {"kind": kind} | sizes, 1.0, 1, 1e-3)
    plan = {"participation": {"kind": kind}, "noise": {"multiplier": 1.0}}
    budget = {"delta": 1e-3, "profile": "proven"}
    make_config(plan, {"budget": budget | {"epsilon": 1.001 * spent}})
    low = {"budget": budget | {"epsilon": 0.9 * spent}}
    check_refused("the budget of epsilon ", plan, low)
