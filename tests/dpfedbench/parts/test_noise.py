"""Noise: mechanisms, samplers, and multipliers that decay."""

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.parts.compatibility import check_part
from dpsum.accounting.budget_plans import DecayingBudgetPlan
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.correlated_noise import Factorised
from dpsum.noise import Gaussian
from dpsum.participation import PoissonLots
from dpsum.private_sum import PrivateSum
from dpsum.skellam_noise import Skellam
from tests.dpfedbench.training.conftest import make_config


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
    lots = PoissonLots(cohort=8, rounds=13)
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
        multipliers.append(budget.noise_multiplier)
    z = 2.0
    expected = [*[z] * 4, *[z * 0.9] * 4, *[z * 0.81] * 4, z * 0.729]
    assert multipliers == pytest.approx(expected)
