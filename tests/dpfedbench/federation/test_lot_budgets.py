"""Budgets of runs whose clients sum over lots: calibrated, decaying and fixed noise,
and what the account finds.
"""

import dataclasses
import math

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpsum.accounting import calibration
from dpsum.accounting.account import account
from dpsum.accounting.analyses.poisson import upper_epsilon
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.accounting.context import AccountContext
from dpsum.accounting.filters import HOLDING_ORDERS
from dpsum.accounting.renyi import epsilon_of, renyi
from dpsum.clipping import Constant
from dpsum.noise import Decaying
from dpsum.sums import CompositionGroup, SumSpec
from tests.dpsum.test_ledger import EVENT

from .conftest import (
    accounted,
    history_in,
    ledger_in,
    proven,
    rounds_of,
    stop_before,
    train,
    training_in,
)
from .test_lots import DECAY, SCALAR, make_config
from .test_sums_together import divergence_of, moment

CLAIMS = {"poisson-lots": WHOLE_ORDERS}


def test_a_decaying_budget_is_what_the_account_says(silos, tmp_path):
    """One round more, at the noise that came next, would have been too much."""
    rounds = {"participation": {"rounds": 30}, "budget": {"epsilon": 3.0}}
    config = make_config(DECAY, rounds)
    train(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    multipliers = [line.noise_multiplier for line in ledger]
    assert len(set(multipliers)) > 1
    profiles = account(ledger, delta=1e-4, claims=CLAIMS).profiles
    last = history_in(tmp_path)["epsilon_claimed"].iloc[-1]
    assert profiles["as_claimed"].epsilon_high == pytest.approx(last, rel=1e-9)
    assert training_in(tmp_path)["stopped_by"] == "budget" and last <= 3.0
    assert profiles["holds"].epsilon_high < last
    assert profiles["holds"].status == "as run"
    entry = rounds_of(config, silos, tmp_path / "again").clients.entry
    plan = entry.budget.plan_of(entry)
    for multiplier in multipliers:
        plan.noise_multiplier = multiplier
        plan.took(1)
    assert not plan.allows(len(ledger) + 1)


def test_each_local_step_is_charged(silos, tmp_path):
    """Two lots a round: what 14 lots cost is allowed, what 16 cost is not, so that the
    run stops after seven rounds.
    """
    costs = [upper_epsilon(((2.0, lots),), 8 / 100, 1e-4) for lots in (14, 16)]
    overlay = {
        "method": "dp-fl",
        "client_update": {"inner_steps": 2},
        "budget": {"epsilon": sum(costs) / 2, "profile": "holds"},
    }
    config = make_config(overlay)
    train(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    assert [line.round for line in ledger] == list(range(14))
    claimed = [
        calibration.epsilon_after(
            "as_claimed", ledger[0].sampler, 2.0, lots, 1e-4, claims=config.claims
        )
        for lots in range(2, 16, 2)
    ]
    spent = history_in(tmp_path)["epsilon_claimed"].tolist()
    assert spent == pytest.approx(claimed, rel=1e-9)


@pytest.mark.parametrize(("profile", "gap"), [("holds", 1e-9), ("as_claimed", 0.05)])
def test_a_budget_that_noise_may_follow_a_loss_under_is_proved(
    silos, tmp_path, profile, gap
):
    """The filter that kept the budget is the one that the account finds in the ledger,
    whatever the noise was.
    """
    budget = {"budget": {"epsilon": 3.0, "profile": profile}}
    config = make_config(DECAY, budget, {"participation": {"rounds": 60}})
    train(config, silos, tmp_path)
    assert len({line.noise_multiplier for line in ledger_in(tmp_path)}) > 1
    assert training_in(tmp_path)["stopped_by"] == "budget"
    holds = proven(config, tmp_path)
    assert holds["status"] == "proved" and "filter" in holds["explanation"]
    assert holds["epsilon_low"] < holds["epsilon_high"]
    assert holds["epsilon_high"] == pytest.approx(3.0, abs=gap)


def test_lots_without_a_multiplier_meet_their_budget(silos, tmp_path):
    overlay = {
        "method": "dp-fl",
        "noise": {"multiplier": None},
        "budget": {"epsilon": 2.0, "profile": "holds"},
        "participation": {"rounds": 20},
    }
    config = make_config(overlay)
    train(config, silos, tmp_path)
    found = accounted(config, tmp_path)
    assert found["rounds"] == 20
    assert 1.99 <= found["profiles"]["holds"]["epsilon_high"] <= 2.0
    assert found["profiles"]["image_level"]["unit"] == "image"


@pytest.mark.parametrize(("profile", "epsilon"), [("as_claimed", 1.5), ("holds", 1.0)])
def test_constant_noise_stops_before_the_budget_is_exceeded(
    silos, tmp_path, profile, epsilon
):
    budget = {"budget": {"epsilon": epsilon, "profile": profile}}
    train(make_config(budget, {"participation": {"rounds": 60}}), silos, tmp_path)
    done = training_in(tmp_path)["rounds_run"]
    assert 0 < done < 60
    sampler = ledger_in(tmp_path)[0].sampler
    spent, following = (
        calibration.epsilon_after(profile, sampler, 2.0, rounds, 1e-4, claims=CLAIMS)
        for rounds in (done, done + 1)
    )
    assert spent <= epsilon < following


@pytest.mark.parametrize(
    ("profile", "z", "orders", "tight"),
    [
        ("holds", 2.0 / math.sqrt(2), HOLDING_ORDERS, True),
        ("as_claimed", 2.0, WHOLE_ORDERS.orders, False),
    ],
)
def test_a_budget_that_must_hold_counts_both_releases_of_a_lot(
    silos, tmp_path, profile, z, orders, tight
):
    """The claim leaves the second one out, as the paper does; proven is one Gaussian of
    multiplier z / sqrt(2).
    """
    budget = {"epsilon": 2.0, "profile": profile}
    rounds = {"participation": {"rounds": 500}}
    config = make_config(SCALAR, rounds, {"budget": budget})
    found = rounds_of(config, silos, tmp_path).clients.entry.budget
    cost = renyi(z, 8 / 100, orders)
    allowed = sum(
        epsilon_of(count * cost, orders, 1e-4, tight=tight) <= 2.0
        for count in range(1, 500)
    )
    assert 0 < allowed < 499
    assert found.allows(allowed) and not found.allows(allowed + 1)


def test_noise_that_may_fall_is_accounted_for_at_its_floor(silos, tmp_path):
    """Six rounds of two lots, a validation after each: at most one fall in two lots,
    whatever the losses were.
    """
    steps = {"client_update": {"inner_steps": 2}, "participation": {"rounds": 6}}
    config = make_config(DECAY, steps)
    train(config, silos, tmp_path)
    worst = tuple((2.0 * 0.9**fall, 2) for fall in range(6))
    holds = proven(config, tmp_path)
    assert holds["status"] == "proved"
    expected = upper_epsilon(worst, 8 / 100, 1e-4)
    assert holds["epsilon_high"] == pytest.approx(expected, rel=1e-9)


SLOWLY = {"noise": {"kind": "decaying", "multiplier": 1.4, "decay": 0.99, "falls": 3}}


@pytest.mark.parametrize(
    "overlay", [SLOWLY, SCALAR], ids=["decaying", "released twice"]
)
def test_what_was_spent_goes_through_a_restart(silos, tmp_path, monkeypatch, overlay):
    """A budget that forgot it would allow as many lots again, and last for all 60."""
    budget = {"budget": {"epsilon": 2.0, "profile": "holds"}}
    config = make_config(overlay, budget, {"participation": {"rounds": 60}})
    whole = train(config, silos, tmp_path / "whole")
    done = training_in(tmp_path / "whole")["rounds_run"]
    assert 4 < done < 55
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, done - 2)):
        train(config, silos, tmp_path / "resumed", checkpoint_seconds=0)
    assert train(config, silos, tmp_path / "resumed") == whole
    assert training_in(tmp_path / "resumed")["stopped_by"] == "budget"


def test_the_order_of_a_filter_is_chosen_before_the_first_lot():
    """The order that is best for what ran is another: by it there would be room, and a
    proof, for noise that fell far.
    """
    limit, delta = 2.0, 1e-4
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
    assert best < first and spent[best] < 0.9 * allowed[best]
    multipliers.pop()

    plan = PoissonLots(cohort=8, rounds=400)
    sampler = plan.lots(clients=4, seed=0, steps=1, records=100).describe()
    budget = BudgetSettings(epsilon=limit, delta=delta, profile="holds")
    sum_ = SumSpec(
        name="sum",
        unit="record",
        observer="server",
        budget=budget,
        noise=Decaying(multiplier=4.0),
        clipping=Constant(threshold=1.0),
    )
    filtered = CompositionGroup((sum_,)).plan(
        sampler, claims=CLAIMS, counted=True, stepwise=True
    )
    for number, z in enumerate(multipliers):
        filtered.noise_multiplier = z
        assert filtered.allows(number + 1) == (number < len(multipliers) - 1)
        filtered.took(1)
    record = {"name": "gradient-sum", "unit": "record", "observer": "server"}
    lines = [
        dataclasses.replace(
            EVENT,
            round=number,
            sampler=sampler,
            noise_multiplier=z,
            noise_std=z * EVENT.threshold,
            **record,
        )
        for number, z in enumerate(multipliers)
    ]
    context = AccountContext(budget=budget, adaptive=True)
    for ran, status in ((lines, "as run"), (lines[:-1], "proved")):
        found = account(ran, delta=delta, claims=CLAIMS, given=context)
        assert found.profiles["holds"].status == status


def test_a_budget_that_no_round_fits_is_refused(silos, tmp_path):
    for overlay in ({}, DECAY):
        with pytest.raises(BenchError, match="first round"):
            train(make_config(overlay, {"budget": {"epsilon": 0.01}}), silos, tmp_path)
