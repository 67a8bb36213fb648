"""Noise: mechanisms, samplers, and multipliers that decay or are calibrated."""

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.parts.compatibility import check_part
from dpsum.accounting.budget_plans import BudgetPlan, DecayingBudgetPlan
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.clipping import Constant
from dpsum.correlated_noise import Factorised
from dpsum.noise import Decaying, Gaussian
from dpsum.participation import PoissonLots
from dpsum.private_sum import PrivateSum
from dpsum.skellam_noise import Skellam
from dpsum.sums import CompositionGroup, SumSpec
from tests.dpfedbench.training.conftest import make_config


def plan_budget(noise, budget=None):
    """Return the budget plan of a sum over Poisson lots."""
    lots = PoissonLots(cohort=8, rounds=12).lots(
        clients=4, seed=0, steps=1, records=100
    )
    sum_ = SumSpec(
        name="gradient-sum",
        unit="record",
        observer="server",
        clipping=Constant(),
        noise=noise,
        budget=budget or BudgetSettings(delta=1e-4),
    )
    return CompositionGroup((sum_,)).plan(
        lots.describe(),
        claims={"poisson-lots": WHOLE_ORDERS},
        counted=True,
        stepwise=True,
    )


def laplace(self, stream_of, index, dimension):
    """Draw noise of deviation 1 with heavier tails than a Gaussian's."""
    return stream_of(index).laplace(scale=0.5**0.5, size=dimension)


def own_sum(self, *, streams, cohort, **values):
    return PrivateSum(**values)


class LaplaceDraws:
    standard = laplace


@pytest.mark.parametrize(
    ("bases", "members", "message"),
    [
        ((Gaussian,), {"standard": laplace}, "standard of its own, but the mechanism"),
        ((Gaussian,), {"private_sum": own_sum}, "private_sum of its own"),
        ((LaplaceDraws, Gaussian), {}, "standard of its own"),
        ((Gaussian,), {"combines": lambda self, index: [1.0]}, "combines of its own"),
        ((Skellam,), {"secure": lambda self, **values: {}}, "secure of its own"),
        ((Factorised,), {"standard": laplace}, "standard of its own"),
        ((Gaussian,), {"mechanism": "gaussian", "standard": laplace}, "both name"),
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
        (Skellam(), "poisson", "the server of a secure sum knows who takes part"),
        (
            Skellam(),
            "balls-and-bins",
            "the server of a secure sum knows who takes part",
        ),
    ],
)
def test_noise_refuses_samplers_without_an_analysis(noise, kind, message):
    run = make_config({"method": "dp-agr"}, {"participation": kind})
    with pytest.raises(
        BenchError, match=f"^participation.kind is {kind}, but {message}"
    ):
        check_part(run, noise)


def test_decaying_noise_decays_after_three_decreases_in_a_row():
    """J(w_1) and J(w_2) count as infinite: the first decay can come after the fifth
    loss.
    """
    budget = plan_budget(Decaying(multiplier=2.0, decay=0.9, falls=3))
    assert isinstance(budget, DecayingBudgetPlan)
    assert type(plan_budget(Gaussian(multiplier=2.0))) is BudgetPlan
    multipliers = []
    for loss in (9, 8, 7, 6, 5, 5, 4, 3, 2, 2.5, 2, 1, 0.5):
        budget.observe(float(loss))
        multipliers.append(budget.noise_multiplier)
    z = 2.0
    expected = [*[z] * 4, *[z * 0.9] * 4, *[z * 0.81] * 4, z * 0.729]
    assert multipliers == pytest.approx(expected)


def test_calibrated_noise_is_the_least_that_the_budget_allows():
    """One per cent less noise exceeds the budget."""
    budget = BudgetSettings(epsilon=1.0, delta=1e-4, profile="proven")
    calibrated = plan_budget(Gaussian(multiplier=None), budget)
    z = calibrated.noise_multiplier
    assert calibrated.lots_allowed == 12
    assert plan_budget(Gaussian(multiplier=z), budget).lots_allowed == 12
    assert plan_budget(Gaussian(multiplier=0.99 * z), budget).lots_allowed < 12
