"""Budgets: calibrated, decaying and fixed noise, and training that ends in time."""

import math

import pytest

from dpfedbench.parts.budget import BudgetSettings
from dploss.renyi import epsilon_of, renyi
from dpsum import RecordLots
from dpsum.accounting.account import account
from dpsum.accounting.analyses.poisson import upper_epsilon
from dpsum.accounting.calibration import epsilon_after
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.accounting.filters import PROVEN_ORDERS
from dpsum.noise import Decaying, Gaussian
from dpsum.sums import CompositionGroup

from .conftest import (
    history_in,
    ledger_in,
    lots_config,
    make_config,
    proven,
    rounds_of,
    train_model,
    training_in,
)
from .test_clipping_rules import QUANTILE, RECORD_QUANTILE
from .test_lots import DECAY, SCALAR
from .test_search import search_config
from .test_sums_together import joint, private_sum

CLAIMS = {"poisson-lots": WHOLE_ORDERS}


def moment(z, order, rate=8 / 100):
    """Return the Renyi divergence of a sampled Gaussian at a whole order (Mironov et
    al. 2019, Section 3.3).
    """
    terms = (
        math.comb(order, k)
        * (1 - rate) ** (order - k)
        * rate**k
        * math.exp(k * (k - 1) / (2 * z * z))
        for k in range(order + 1)
    )
    return math.log(math.fsum(terms)) / (order - 1)


def test_decaying_noise_shares_a_filter_with_a_second_sum():
    """A lot in the filter has both sums, at the order that is best for the first lot.

    The budget's divergence at an order is that of Canonne, Kamath and Steinke 2020,
    Proposition 12.
    """
    fields = {
        "unit": "record",
        "observer": "server",
        "budget": BudgetSettings(epsilon=2.0, delta=1e-4, profile="proven"),
    }
    decaying = private_sum("a", noise=Decaying(multiplier=4.0), **fields)
    fixed = private_sum("b", noise=Gaussian(multiplier=3.0), **fields)
    lots = RecordLots(clients=4, lot=8, rounds=400, records=100, seed=0)
    plan = CompositionGroup((decaying, fixed)).plan(
        lots.describe(), claims=CLAIMS, counted=True
    )

    def cost(z, order):
        return moment(joint(z, 3.0), order)

    def divergence(order):
        logarithms = (math.log(1e-4) + math.log(order)) / (order - 1)
        return 2.0 + logarithms - math.log1p(-1 / order)

    order = max(range(2, 65), key=lambda order: divergence(order) / cost(4.0, order))
    spent = 0.0
    count = 0
    z = 4.0
    while plan.allows(count + 1):
        plan.charge()
        spent += cost(z, order)
        count += 1
        z *= 0.8
        plan.multipliers[0] = z
    assert 1 < count < 200
    assert spent <= divergence(order) < spent + cost(z, order)


def test_claimed_budget_of_decaying_noise_is_what_the_account_says(silos, tmp_path):
    """One more round, at the next noise, would exceed the budget."""
    limits = {"participation": {"rounds": 30}, "budget": {"epsilon": 3.0}}
    config = lots_config(DECAY, limits)
    train_model(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    multipliers = [line.noise_multiplier for line in ledger]
    assert len(set(multipliers)) > 1
    profiles = account(ledger, delta=1e-4, claims=CLAIMS).profiles
    last = history_in(tmp_path)["epsilon_claimed"].iloc[-1]
    assert profiles["claimed"].epsilon_high == pytest.approx(last, rel=1e-9)
    assert training_in(tmp_path)["stopped_by"] == "budget"
    assert profiles["proven"].epsilon_high < last <= 3.0
    assert profiles["proven"].status == "as run"
    mechanism = rounds_of(config, silos, tmp_path / "again").clients.mechanism
    plan = mechanism.composition.plan_of(mechanism.spec.name)
    for multiplier in multipliers:
        plan.multipliers[0] = multiplier
        plan.charge()
    assert not plan.allows(len(ledger) + 1)


def test_budget_charges_each_local_step(silos, tmp_path):
    """Two lots a round: the budget allows 14 lots and not 16, so the run stops after
    seven rounds.
    """
    costs = [upper_epsilon(((2.0, lots),), 8 / 100, 1e-4) for lots in (14, 16)]
    budget = {"budget": {"epsilon": sum(costs) / 2, "profile": "proven"}}
    steps = {"client_update": {"inner_steps": 2}}
    config = lots_config({"method": "dp-fl"}, steps, budget)
    train_model(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    assert [line.round for line in ledger] == list(range(14))
    claimed = [
        epsilon_after("claimed", ledger[0].sampler, 2.0, lots, 1e-4, claims=CLAIMS)
        for lots in range(2, 16, 2)
    ]
    spent = history_in(tmp_path)["epsilon_claimed"].tolist()
    assert spent == pytest.approx(claimed, rel=1e-9)


@pytest.mark.parametrize("clipping", [{}, RECORD_QUANTILE])
@pytest.mark.parametrize(("profile", "gap"), [("proven", 1e-9), ("claimed", 0.05)])
def test_budget_of_noise_that_follows_a_loss_is_proved_by_a_filter(
    silos, tmp_path, profile, gap, clipping
):
    budget = {"budget": {"epsilon": 3.0, "profile": profile}}
    config = lots_config(DECAY, clipping, budget, {"participation": {"rounds": 60}})
    train_model(config, silos, tmp_path)
    assert len({line.noise_multiplier for line in ledger_in(tmp_path)}) > 1
    assert training_in(tmp_path)["stopped_by"] == "budget"
    proof = proven(config, tmp_path)
    assert proof["status"] == "proved"
    assert "filter" in proof["explanation"]
    assert proof["epsilon_low"] < proof["epsilon_high"]
    assert proof["epsilon_high"] == pytest.approx(3.0, abs=gap)


@pytest.mark.parametrize(
    ("profile", "z", "orders", "tight"),
    [
        ("proven", 2.0 / math.sqrt(2), PROVEN_ORDERS, True),
        ("claimed", 2.0, WHOLE_ORDERS.orders, False),
    ],
)
def test_proven_budget_counts_both_releases_of_a_lot(
    silos, tmp_path, profile, z, orders, tight
):
    """The claim omits the second release, as the paper does. The proven epsilon is that
    of one Gaussian of multiplier z / sqrt(2).
    """
    budget = {"epsilon": 2.0, "profile": profile}
    config = lots_config(SCALAR, {"participation": {"rounds": 500}, "budget": budget})
    composition = rounds_of(config, silos, tmp_path).clients.mechanism.composition
    cost = renyi(z, 8 / 100, orders)
    allowed = sum(
        epsilon_of(count * cost, orders, 1e-4, tight=tight) <= 2.0
        for count in range(1, 500)
    )
    assert 0 < allowed < 499
    assert composition.allows(allowed)
    assert not composition.allows(allowed + 1)


# Calibrated noise
NULL = {"multiplier": None}
PROVEN_TWO = {"budget": {"epsilon": 2.0, "profile": "proven"}, "noise": NULL}
COUNT = {"clipping": {"count_noise": 20.0}}


def one_sum(kind, cohort=4):
    plan = {"participation": {"kind": kind, "cohort": cohort}}
    return "federation", make_config(PROVEN_TWO, plan)


CALIBRATED = {
    "one pass": one_sum("one-pass"),
    "balls and bins": one_sum("balls-and-bins"),
    "poisson": one_sum("poisson"),
    "fixed size": one_sum("fixed-size"),
    "shuffled epochs": one_sum("shuffled-epochs", cohort=12),
    "min separation": one_sum("min-separation", cohort=12),
    "lots": ("silos", lots_config({"method": "dp-fl"}, PROVEN_TWO)),
    "search": ("silos", search_config(PROVEN_TWO, {"architecture_noise": NULL})),
    "quantile of records": ("silos", lots_config(RECORD_QUANTILE, PROVEN_TWO)),
    "quantile of clients": ("federation", make_config(QUANTILE, PROVEN_TWO, COUNT)),
}


@pytest.mark.parametrize("name", CALIBRATED)
def test_calibrated_noise_meets_the_budget_in_all_rounds(name, request, tmp_path):
    """A search has two sums over separate halves. A quantile's count is paid from the
    same budget.
    """
    fixture, config = CALIBRATED[name]
    train_model(config, request.getfixturevalue(fixture), tmp_path)
    rounds = {line.round for line in ledger_in(tmp_path)}
    assert len(rounds) == config.participation.rounds
    epsilon = config.budget.epsilon
    assert 0.98 * epsilon < proven(config, tmp_path)["epsilon_high"] <= epsilon
