"""Budgets: calibrated, decaying and fixed noise, and training that ends in time."""

import dataclasses
import math

import pytest

from dpfedbench.parts.budget import BudgetSettings
from dploss.gaussian import gaussian_epsilon
from dploss.renyi import epsilon_of, renyi
from dpsum.accounting import calibration
from dpsum.accounting.account import account
from dpsum.accounting.analyses.poisson import upper_epsilon
from dpsum.accounting.calibration import calibrate
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.accounting.context import AccountContext
from dpsum.accounting.filters import PROVEN_ORDERS
from dpsum.clipping import Constant
from dpsum.noise import Decaying, Gaussian
from dpsum.participation import PoissonLots
from dpsum.sums import CompositionGroup, SumSpec
from tests.dpsum.test_ledger import EVENT

from .conftest import (
    accounted,
    history_in,
    ledger_in,
    lots_config,
    make_config,
    proven,
    rounds_of,
    stop_before,
    train,
    training_in,
)
from .test_lots import DECAY, SCALAR
from .test_private_quantile import QUANTILE, RECORD_QUANTILE
from .test_search import search_config
from .test_sums_together import joint

CLAIMS = {"poisson-lots": WHOLE_ORDERS}
LOTS_OF_EIGHT = PoissonLots(cohort=8, rounds=400).lots(
    clients=4, seed=0, steps=1, records=100
)


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


def divergence_of(epsilon, delta, order):
    """Solve Canonne, Kamath and Steinke 2020, Proposition 12, for the divergence."""
    logarithms = (math.log(delta) + math.log(order)) / (order - 1)
    return epsilon + logarithms - math.log1p(-1 / order)


def filter_of(budget, *noises):
    """Return the budget plan of sums of a lot with these noises."""
    sums = [
        SumSpec(
            name=f"sum{position}",
            unit="record",
            observer="server",
            budget=budget,
            noise=noise,
            clipping=Constant(threshold=1.0),
        )
        for position, noise in enumerate(noises)
    ]
    return CompositionGroup(tuple(sums)).plan(
        LOTS_OF_EIGHT.describe(), claims=CLAIMS, counted=True, stepwise=True
    )


def test_decaying_noise_shares_a_filter_with_a_second_sum():
    """A lot in the filter has both sums, at the order that is best for the first lot."""
    budget = BudgetSettings(epsilon=2.0, delta=1e-4, profile="proven")
    plan = filter_of(budget, Decaying(multiplier=4.0), Gaussian(multiplier=3.0))

    def cost(z, order):
        return moment(joint(z, 3.0), order)

    order = max(
        range(2, 65),
        key=lambda order: divergence_of(2.0, 1e-4, order) / cost(4.0, order),
    )
    limit = divergence_of(2.0, 1e-4, order)
    spent = 0.0
    lots = 0
    z = 4.0
    while plan.allows(lots + 1):
        plan.charge(1)
        spent += cost(z, order)
        lots += 1
        z *= 0.8
        plan.noise_multiplier = z
    assert 1 < lots < 200
    assert spent <= limit < spent + cost(z, order)


def test_claimed_budget_of_decaying_noise_is_what_the_account_says(silos, tmp_path):
    """One more round, at the next noise, would exceed the budget."""
    limits = {"participation": {"rounds": 30}, "budget": {"epsilon": 3.0}}
    config = lots_config(DECAY, limits)
    train(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    multipliers = [line.noise_multiplier for line in ledger]
    assert len(set(multipliers)) > 1
    profiles = account(ledger, delta=1e-4, claims=CLAIMS).profiles
    last = history_in(tmp_path)["epsilon_claimed"].iloc[-1]
    assert profiles["claimed"].epsilon_high == pytest.approx(last, rel=1e-9)
    assert training_in(tmp_path)["stopped_by"] == "budget"
    assert last <= 3.0
    assert profiles["proven"].epsilon_high < last
    assert profiles["proven"].status == "as run"
    mechanism = rounds_of(config, silos, tmp_path / "again").clients.mechanism
    plan = mechanism.composition.plan_of(mechanism)
    for multiplier in multipliers:
        plan.noise_multiplier = multiplier
        plan.charge(1)
    assert not plan.allows(len(ledger) + 1)


def test_budget_charges_each_local_step(silos, tmp_path):
    """Two lots a round: the budget allows 14 lots and not 16, so the run stops after
    seven rounds.
    """
    costs = [upper_epsilon(((2.0, lots),), 8 / 100, 1e-4) for lots in (14, 16)]
    overlay = {
        "method": "dp-fl",
        "client_update": {"inner_steps": 2},
        "budget": {"epsilon": sum(costs) / 2, "profile": "proven"},
    }
    config = lots_config(overlay)
    train(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    assert [line.round for line in ledger] == list(range(14))
    claimed = [
        calibration.epsilon_after(
            "claimed", ledger[0].sampler, 2.0, lots, 1e-4, claims=config.claims
        )
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
    train(config, silos, tmp_path)
    assert len({line.noise_multiplier for line in ledger_in(tmp_path)}) > 1
    assert training_in(tmp_path)["stopped_by"] == "budget"
    proof = proven(config, tmp_path)
    assert proof["status"] == "proved"
    assert "filter" in proof["explanation"]
    assert proof["epsilon_low"] < proof["epsilon_high"]
    assert proof["epsilon_high"] == pytest.approx(3.0, abs=gap)


@pytest.mark.parametrize(("profile", "epsilon"), [("claimed", 1.5), ("proven", 1.0)])
def test_constant_noise_stops_before_the_budget_is_exceeded(
    silos, tmp_path, profile, epsilon
):
    budget = {"budget": {"epsilon": epsilon, "profile": profile}}
    train(lots_config(budget, {"participation": {"rounds": 60}}), silos, tmp_path)
    rounds_run = training_in(tmp_path)["rounds_run"]
    assert 0 < rounds_run < 60
    sampler = ledger_in(tmp_path)[0].sampler
    spent, following = (
        calibration.epsilon_after(profile, sampler, 2.0, rounds, 1e-4, claims=CLAIMS)
        for rounds in (rounds_run, rounds_run + 1)
    )
    assert spent <= epsilon < following


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


def test_decaying_noise_is_accounted_for_at_its_floor(silos, tmp_path):
    """Six rounds of two lots, with a validation after each: whatever the losses, there
    is at most one decay in two lots.
    """
    steps = {"client_update": {"inner_steps": 2}, "participation": {"rounds": 6}}
    config = lots_config(DECAY, steps)
    train(config, silos, tmp_path)
    worst = tuple((2.0 * 0.9**decays, 2) for decays in range(6))
    proof = proven(config, tmp_path)
    assert proof["status"] == "proved"
    expected = upper_epsilon(worst, 8 / 100, 1e-4)
    assert proof["epsilon_high"] == pytest.approx(expected, rel=1e-9)


SLOW_DECAY = {
    "noise": {"kind": "decaying", "multiplier": 1.4, "decay": 0.99, "falls": 3}
}


@pytest.mark.parametrize(
    "overlay", [SLOW_DECAY, SCALAR], ids=["decaying", "released twice"]
)
def test_budget_keeps_what_was_spent_over_a_restart(
    silos, tmp_path, monkeypatch, overlay
):
    """A budget that forgot it would allow as many lots again, and all 60 would run."""
    budget = {"budget": {"epsilon": 2.0, "profile": "proven"}}
    config = lots_config(overlay, budget, {"participation": {"rounds": 60}})
    whole = train(config, silos, tmp_path / "whole")
    rounds_run = training_in(tmp_path / "whole")["rounds_run"]
    assert 4 < rounds_run < 55
    stop = stop_before(monkeypatch, rounds_run - 2)
    with pytest.raises(stop):
        train(config, silos, tmp_path / "resumed", checkpoint_seconds=0)
    monkeypatch.undo()
    assert train(config, silos, tmp_path / "resumed") == whole
    assert training_in(tmp_path / "resumed")["stopped_by"] == "budget"


def test_filter_chooses_its_order_before_the_first_lot():
    """Another order is the best for the lots that ran. With that order the filter would
    allow, and prove, noise that decayed further.
    """
    limit = 2.0
    delta = 1e-4
    orders = range(2, 33)
    allowed = {order: divergence_of(limit, delta, order) for order in orders}
    first = max(orders, key=lambda order: allowed[order] / moment(4.0, order))
    spent = dict.fromkeys(orders, 0.0)
    multipliers = [4.0]
    while spent[first] <= allowed[first]:
        for order in orders:
            spent[order] += moment(multipliers[-1], order)
        multipliers.append(0.9)
    best = min(orders, key=lambda order: spent[order] - allowed[order])
    assert best < first
    assert spent[best] < 0.9 * allowed[best]
    multipliers.pop()

    budget = BudgetSettings(epsilon=limit, delta=delta, profile="proven")
    filtered = filter_of(budget, Decaying(multiplier=4.0))
    for number, z in enumerate(multipliers):
        filtered.noise_multiplier = z
        assert filtered.allows(number + 1) == (number < len(multipliers) - 1)
        filtered.charge(1)
    lines = [
        dataclasses.replace(
            EVENT,
            round=number,
            name="gradient-sum",
            unit="record",
            observer="server",
            sampler=LOTS_OF_EIGHT.describe(),
            noise_multiplier=z,
            noise_std=z * EVENT.threshold,
        )
        for number, z in enumerate(multipliers)
    ]
    context = AccountContext(budget=budget, adaptive=True)
    for ledger, status in ((lines, "as run"), (lines[:-1], "proved")):
        result = account(ledger, delta=delta, claims=CLAIMS, context=context)
        assert result.profiles["proven"].status == status


# Budgets of few-shot runs

POISSON = {"participation": {"kind": "poisson"}}


@pytest.mark.parametrize(
    "kind",
    [
        "one-pass",
        "balls-and-bins",
        "poisson",
        "shuffled-epochs",
        "min-separation",
        "fixed-size",
    ],
)
def test_calibrated_noise_meets_the_budget_in_all_rounds(federation, tmp_path, kind):
    """Several clients use one image, so an image is protected less than a client.

    Cohorts of 12 of 48 clients in 12 rounds are three passes.
    """
    passes = {"cohort": 12} if kind in ("shuffled-epochs", "min-separation") else {}
    overlay = {
        "noise": {"multiplier": None},
        "budget": {"epsilon": 1.5, "delta": 1e-3, "profile": "proven"},
        "participation": {"kind": kind} | passes,
        "clipping": {"form": "sum"},
    }
    config = make_config(overlay)
    train(config, federation, tmp_path)
    account = accounted(config, tmp_path, federation[1])
    ledger = ledger_in(tmp_path)
    z = account["noise_multiplier"]
    assert len(ledger) == 12
    assert {line.noise_multiplier for line in ledger} == {z}
    assert z == calibrate("proven", ledger[0].sampler, 1.5, 1e-3)
    epsilon = account["profiles"]["proven"]["epsilon_high"]
    assert 1.5 * (1 - 5e-3) <= epsilon <= 1.5
    if kind == "one-pass":
        assert epsilon == gaussian_epsilon(z, 1e-3)
    image = account["profiles"]["image_level"]
    assert image["uses_max"] > 1
    assert epsilon < image["epsilon_high"] < math.inf


NULL = {"noise": {"multiplier": None}}
PROVEN_TWO = {"budget": {"epsilon": 2.0, "profile": "proven"}} | NULL
CALIBRATED = {
    "lots": ("silos", lots_config({"method": "dp-fl"}, PROVEN_TWO)),
    "search": (
        "silos",
        search_config(PROVEN_TWO, {"architecture_noise": {"multiplier": None}}),
    ),
    "quantile of records": ("silos", lots_config(RECORD_QUANTILE, PROVEN_TWO)),
    "quantile of clients": (
        "federation",
        make_config(QUANTILE, PROVEN_TWO, {"clipping": {"count_noise": 20.0}}),
    ),
}


@pytest.mark.parametrize("name", CALIBRATED)
def test_calibrated_noise_meets_the_budget_of_all_sums(name, request, tmp_path):
    """A search has two sums over separate halves. A quantile's count is paid from the
    same budget.
    """
    fixture, config = CALIBRATED[name]
    train(config, request.getfixturevalue(fixture), tmp_path)
    assert {line.round for line in ledger_in(tmp_path)} == set(
        range(config.participation.rounds)
    )
    assert 1.9 < proven(config, tmp_path)["epsilon_high"] <= 2.0


def test_training_stops_before_the_budget_would_be_exceeded(federation, tmp_path):
    train(make_config(POISSON, {"budget": {"epsilon": 1.0}}), federation, tmp_path)
    training = training_in(tmp_path)
    assert training["stopped_by"] == "budget"
    assert 0 < training["rounds_run"] < 12
    assert history_in(tmp_path)["epsilon_proven"].iloc[-1] <= 1.0
    train(make_config(POISSON), federation, tmp_path / "unlimited")
    unlimited = history_in(tmp_path / "unlimited")["epsilon_proven"]
    assert unlimited.iloc[training["rounds_run"]] > 1.0
