"""Noise: mechanisms, samplers, and multipliers that decay."""

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.parts.compatibility import library_rules
from dpfedbench.run import check_rules
from dpsum.accounting.budget_plans import DecayingBudgetPlan
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.correlated_noise import Factorised
from dpsum.noise import Gaussian
from dpsum.participation import PoissonLots
from dpsum.skellam_noise import Skellam
from tests.dpfedbench.training.conftest import make_config


def override(self, *args, **values):
    """Stand-in for a method that draws or sums otherwise."""


class Overriding:
    standard = override


@pytest.mark.parametrize(
    ("bases", "members", "message"),
    [
        ((Gaussian,), {"standard": override}, "standard of its own, but the mechanism"),
        ((Gaussian,), {"private_sum": override}, "private_sum of its own"),
        ((Overriding, Gaussian), {}, "standard of its own"),
        ((Gaussian,), {"combines": override}, "combines of its own"),
        ((Skellam,), {"secure": override}, "secure of its own"),
        ((Factorised,), {"standard": override}, "standard of its own"),
        ((Gaussian,), {"mechanism": "gaussian", "standard": override}, "both name"),
        ((Gaussian,), {"mechanism": "skellam"}, "both name the mechanism 'skellam'"),
    ],
)
def test_noise_that_draws_or_sums_otherwise_needs_a_mechanism_of_its_own(
    bases, members, message
):
    """Otherwise the Gaussian's epsilon would be called proved."""
    body = {"__module__": __name__, "__annotations__": {}}
    with pytest.raises(BenchError, match=message):
        type("Changed", bases, body | members)


@pytest.mark.parametrize(
    ("noise", "kind", "message"),
    [
        (Factorised(), "poisson", "correlated noise needs known rounds"),
        (Factorised(), "fixed-size", "correlated noise needs known rounds"),
        (Skellam(), "poisson", "the server of a secure sum knows who takes"),
        (Skellam(), "balls-and-bins", "the server of a secure sum knows who takes"),
    ],
)
def test_noise_refuses_samplers_without_an_analysis(noise, kind, message):
    run = make_config({"method": "dp-agr"}, {"participation": kind})
    message = f"^participation.kind is {kind}, but {message}"
    with pytest.raises(BenchError, match=message):
        check_rules([(noise, rule) for rule in library_rules(type(noise))], run)


def test_decaying_noise_decays_after_three_decreases_in_a_row():
    """J(w_1) and J(w_2) count as infinite: the fifth loss can be the first to decay."""
    lots = PoissonLots(lot=8, rounds=13)
    budget = DecayingBudgetPlan(
        BudgetSettings(delta=1e-4),
        sampler=lots.lots(clients=4, seed=0, steps=1, records=100).describe(),
        multiplier=2.0,
        decay=0.9,
        patience=3,
        claims={"poisson-lots": WHOLE_ORDERS},
        mechanism="gaussian",
    )
    multipliers = []
    for loss in (9, 8, 7, 6, 5, 5, 4, 3, 2, 2.5, 2, 1, 0.5):
        budget.observe(float(loss))
        multipliers.append(budget.multipliers[0])
    z = 2.0
    expected = [*[z] * 4, *[z * 0.9] * 4, *[z * 0.81] * 4, z * 0.729]
    assert multipliers == pytest.approx(expected)
