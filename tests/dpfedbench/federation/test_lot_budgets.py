"""Budgets of runs whose clients sum over lots: calibrated, decaying and fixed noise,
and what the account finds.
"""

import dataclasses
import json
import math

import pandas as pd
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpsum.accounting import calibration
from dpsum.accounting.account import account
from dpsum.accounting.analyses.poisson import upper_epsilon
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.accounting.context import AccountContext
from dpsum.accounting.filters import HOLDING_ORDERS
from dpsum.accounting.renyi import epsilon_of, renyi
from dpsum.clipping import Constant
from dpsum.ledger import read_ledger
from dpsum.noise import Decaying
from dpsum.sums import CompositionGroup, SumSpec
from tests.dpsum.test_ledger import EVENT

from .conftest import accounted, rounds_of, stop_before, train
from .test_lots import DECAY, SCALAR, make_config

CLAIMS = {"poisson-lots": WHOLE_ORDERS}


def test_a_decaying_budget_is_what_the_account_says(silos, tmp_path):
    config = make_config(
        DECAY, {"participation": {"rounds": 30}, "budget": {"epsilon": 3.0}}
    )
    train(config, silos, tmp_path)
    training = json.loads((tmp_path / "training.json").read_text())
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    found = account(ledger, delta=1e-4, claims=CLAIMS).to_json()["profiles"]
    last = pd.read_csv(tmp_path / "history.csv")["epsilon_claimed"].iloc[-1]
    assert len({event.noise_multiplier for event in ledger}) > 1
    assert found["as_claimed"]["epsilon_high"] == pytest.approx(last, rel=1e-9)
    assert training["stopped_by"] == "budget" and last <= 3.0
    assert found["holds"]["epsilon_high"] < last
    assert found["holds"]["status"] == "as run"
    # One round more, at the noise that came next, would have been too much.
    entry = rounds_of(config, silos, tmp_path / "again").clients.entry
    again = entry.budget.plan_of(entry)
    for event in ledger:
        again.noise_multiplier = event.noise_multiplier
        again.took(1)
    assert not again.allows(len(ledger) + 1)


def test_each_local_step_is_charged(silos, tmp_path):
    """Two lots a round: what 14 lots cost is allowed, what 16 cost is not, so that the
    run stops after seven rounds.
    """
    fourteen, sixteen = (
        upper_epsilon(((2.0, lots),), 8 / 100, 1e-4) for lots in (14, 16)
    )
    budget = {"epsilon": (fourteen + sixteen) / 2, "profile": "holds"}
    config = make_config(
        {"method": "dp-fl", "client_update": {"inner_steps": 2}, "budget": budget}
    )
    train(config, silos, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert [line.round for line in ledger] == list(range(14))
    spent = pd.read_csv(tmp_path / "history.csv")["epsilon_claimed"].tolist()
    sampler, given = ledger[0].sampler, {"claims": config.claims}
    claimed = [
        calibration.epsilon_after("as_claimed", sampler, 2.0, lots, 1e-4, **given)
        for lots in range(2, 16, 2)
    ]
    assert spent == pytest.approx(claimed, rel=1e-9)


@pytest.mark.parametrize("profile", ["holds", "as_claimed"])
def test_a_budget_that_noise_may_follow_a_loss_under_is_proved(
    silos, tmp_path, profile
):
    """The filter that kept the budget is the one that the account finds in the ledger,
    whatever the noise was.
    """
    config = make_config(
        DECAY,
        {
            "participation": {"rounds": 60},
            "budget": {"epsilon": 3.0, "profile": profile},
        },
    )
    train(config, silos, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert len({event.noise_multiplier for event in ledger}) > 1
    assert (
        json.loads((tmp_path / "training.json").read_text())["stopped_by"] == "budget"
    )
    found = accounted(config, tmp_path)["profiles"]["holds"]
    assert found["status"] == "proved" and found["epsilon_low"] < found["epsilon_high"]
    assert "filter" in found["explanation"]
    assert found["epsilon_high"] == pytest.approx(
        3.0, abs=1e-9 if profile == "holds" else 0.05
    )


def test_lots_without_a_multiplier_meet_their_budget(silos, tmp_path):
    budget = {"epsilon": 2.0, "profile": "holds"}
    config = make_config(
        {
            "method": "dp-fl",
            "noise": {"multiplier": None},
            "budget": budget,
            "participation": {"rounds": 20},
        }
    )
    train(config, silos, tmp_path)
    found = accounted(config, tmp_path)
    assert (
        found["rounds"] == 20
        and 1.99 <= found["profiles"]["holds"]["epsilon_high"] <= 2.0
    )
    assert found["profiles"]["image_level"]["unit"] == "image"


@pytest.mark.parametrize(("profile", "epsilon"), [("as_claimed", 1.5), ("holds", 1.0)])
def test_constant_noise_stops_before_the_budget_is_exceeded(
    silos, tmp_path, profile, epsilon
):
    config = make_config(
        {
            "budget": {"epsilon": epsilon, "profile": profile},
            "participation": {"rounds": 60},
        }
    )
    train(config, silos, tmp_path)
    sampler = (
        PoissonLots(cohort=8, rounds=60)
        .lots(clients=4, seed=0, steps=1, records=100)
        .describe()
    )
    allowed = calibration.rounds_allowed(
        profile, sampler, 2.0, 1e-4, epsilon, claims=CLAIMS
    )
    assert (
        json.loads((tmp_path / "training.json").read_text())["rounds_run"]
        == allowed
        < 60
    )
    assert (
        calibration.epsilon_after(profile, sampler, 2.0, allowed, 1e-4, claims=CLAIMS)
        <= epsilon
    )
    assert (
        calibration.epsilon_after(
            profile, sampler, 2.0, allowed + 1, 1e-4, claims=CLAIMS
        )
        > epsilon
    )


def test_a_budget_that_must_hold_counts_both_releases_of_a_lot(silos, tmp_path):
    """The claim leaves the second one out, as the paper does; what holds is one
    Gaussian of multiplier z / sqrt(2).
    """
    for profile, z, orders, tight in (
        ("holds", 2.0 / math.sqrt(2), HOLDING_ORDERS, True),
        ("as_claimed", 2.0, WHOLE_ORDERS.orders, False),
    ):
        budget = {"epsilon": 2.0, "profile": profile}
        config = make_config(
            SCALAR, {"budget": budget, "participation": {"rounds": 500}}
        )
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
    found = accounted(config, tmp_path)["profiles"]["holds"]
    assert found["status"] == "proved"
    assert found["epsilon_high"] == pytest.approx(
        upper_epsilon(worst, 8 / 100, 1e-4), rel=1e-9
    )


SLOWLY = {"noise": {"kind": "decaying", "multiplier": 1.4, "decay": 0.99, "falls": 3}}


@pytest.mark.parametrize(
    "overlay", [SLOWLY, SCALAR], ids=["decaying", "released twice"]
)
def test_what_was_spent_goes_through_a_restart(silos, tmp_path, monkeypatch, overlay):
    """A budget that forgot it would allow as many lots again: killed once, it ends with
    the same release.
    """
    config = make_config(
        overlay,
        {
            "participation": {"rounds": 60},
            "budget": {"epsilon": 2.0, "profile": "holds"},
        },
    )
    whole = train(config, silos, tmp_path / "whole")
    done = json.loads((tmp_path / "whole" / "training.json").read_text())["rounds_run"]
    assert 4 < done < 55  # a budget of its own after the restart would last for all 60
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, done - 2)):
        train(config, silos, tmp_path / "resumed", checkpoint_seconds=0)
    assert train(config, silos, tmp_path / "resumed") == whole
    assert (
        json.loads((tmp_path / "resumed" / "training.json").read_text())["stopped_by"]
        == "budget"
    )


def divergence(z, order, rate=8 / 100):
    """Of a sampled Gaussian at a whole order, by the sum that defines it (Mironov et
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


def test_the_order_of_a_filter_is_chosen_before_the_first_lot():
    """The order that is best for what ran is another: by it there would be room, and a
    proof, for noise that fell far.

    The budget at an order solves Canonne, Kamath and Steinke 2020, Proposition 12, for
    the divergence.
    """
    limit, delta, sampler = (
        2.0,
        1e-4,
        PoissonLots(cohort=8, rounds=400).lots(clients=4, seed=0, steps=1, records=100),
    )

    def allowed(order):
        return (
            limit
            + math.log(delta) / (order - 1)
            - math.log1p(-1 / order)
            + math.log(order) / (order - 1)
        )

    first = max(range(2, 33), key=lambda order: allowed(order) / divergence(4.0, order))
    spent, multipliers = {order: 0.0 for order in range(2, 33)}, [4.0]
    while spent[first] <= allowed(first):
        for order in spent:
            spent[order] += divergence(multipliers[-1], order)
        multipliers.append(0.9)
    best = min(spent, key=lambda order: spent[order] - allowed(order))
    assert (
        best < first
        and spent[best] < 0.9 * allowed(best)
        and spent[first] > allowed(first)
    )
    multipliers.pop()

    budget = Budget(epsilon=limit, delta=delta, profile="holds")
    sum_ = SumSpec(
        name="sum",
        unit="record",
        observer="server",
        budget=budget,
        noise=Decaying(multiplier=4.0),
        clipping=Constant(threshold=1.0),
    )
    plan = CompositionGroup((sum_,)).plan(
        sampler.describe(), claims=CLAIMS, counted=True, stepwise=True
    )
    for number, z in enumerate(multipliers):
        plan.noise_multiplier = z
        assert plan.allows(number + 1) == (number < len(multipliers) - 1)
        plan.took(1)
    lines = [
        dataclasses.replace(
            EVENT,
            round=number,
            name="gradient-sum",
            unit="record",
            observer="server",
            sampler=sampler.describe(),
            noise_multiplier=z,
            noise_std=z * EVENT.threshold,
        )
        for number, z in enumerate(multipliers)
    ]
    for ran, status in ((lines, "as run"), (lines[:-1], "proved")):
        found = account(
            ran,
            delta=delta,
            claims=CLAIMS,
            given=AccountContext(budget=budget, adaptive=True),
        )
        assert found.profiles["holds"].status == status


def test_a_budget_that_no_round_fits_is_refused(silos, tmp_path):
    for overlay in ({}, DECAY):
        with pytest.raises(BenchError, match="first round"):
            train(make_config(overlay, {"budget": {"epsilon": 0.01}}), silos, tmp_path)
