"""Budgets of runs whose clients sum over lots: calibrated, decaying and fixed noise, and what the account finds."""

import json
import math

import pandas as pd
import pytest

from dpfedbench.accounting import calibration
from dpfedbench.accounting.account import account
from dpfedbench.accounting.claims import WHOLE_ORDERS
from dpfedbench.accounting.filters import HOLDING_ORDERS
from dpfedbench.accounting.poisson import epsilon_of, renyi, upper_epsilon
from dpfedbench.errors import BenchError
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpfedbench.privacy.ledger import read_ledger

from .conftest import accounted, rounds_of, train
from .test_lots import DECAY, SCALAR, make_config

CLAIMS = {"poisson-lots": WHOLE_ORDERS}


def test_a_decaying_budget_is_what_the_account_says(silos, tmp_path):
    config = make_config(DECAY, {"participation": {"rounds": 30}, "budget": {"epsilon": 3.0}})
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
    again = rounds_of(config, silos, tmp_path / "again").clients.entry.budget
    for event in ledger:
        again.noise_multiplier = event.noise_multiplier
        again.took(1)
    assert not again.allows(len(ledger) + 1)


def test_each_local_step_is_charged(silos, tmp_path):
    """Two lots a round: what 14 lots cost is allowed, what 16 cost is not, so that the run stops after seven rounds."""
    fourteen, sixteen = (upper_epsilon(((2.0, lots),), 8 / 100, 1e-4) for lots in (14, 16))
    budget = {"epsilon": (fourteen + sixteen) / 2, "profile": "holds"}
    config = make_config({"method": "dp-fl", "client_update": {"inner_steps": 2}, "budget": budget})
    train(config, silos, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert [line.round for line in ledger] == list(range(14))
    spent = pd.read_csv(tmp_path / "history.csv")["epsilon_claimed"].tolist()
    sampler, given = ledger[0].sampler, {"claims": config.claims}
    claimed = [calibration.epsilon_after("as_claimed", sampler, 2.0, lots, 1e-4, **given) for lots in range(2, 16, 2)]
    assert spent == pytest.approx(claimed, rel=1e-9)


@pytest.mark.parametrize("profile", ["holds", "as_claimed"])
def test_a_budget_that_noise_may_follow_a_loss_under_is_proved(silos, tmp_path, profile):
    """The filter that kept the budget is the one that the account finds in the ledger, whatever the noise was."""
    config = make_config(DECAY, {"participation": {"rounds": 60}, "budget": {"epsilon": 3.0, "profile": profile}})
    train(config, silos, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert len({event.noise_multiplier for event in ledger}) > 1
    assert json.loads((tmp_path / "training.json").read_text())["stopped_by"] == "budget"
    found = accounted(config, tmp_path)["profiles"]["holds"]
    assert found["status"] == "proved" and found["epsilon_low"] < found["epsilon_high"]
    assert "filter" in found["explanation"]
    assert found["epsilon_high"] == pytest.approx(3.0, abs=1e-9 if profile == "holds" else 0.05)


def test_lots_without_a_multiplier_meet_their_budget(silos, tmp_path):
    budget = {"epsilon": 2.0, "profile": "holds"}
    config = make_config(
        {"method": "dp-fl", "noise": {"multiplier": None}, "budget": budget, "participation": {"rounds": 20}}
    )
    train(config, silos, tmp_path)
    found = accounted(config, tmp_path)
    assert found["rounds"] == 20 and 1.99 <= found["profiles"]["holds"]["epsilon_high"] <= 2.0
    assert found["profiles"]["image_level"]["unit"] == "image"


@pytest.mark.parametrize(("profile", "epsilon"), [("as_claimed", 1.5), ("holds", 1.0)])
def test_constant_noise_stops_before_the_budget_is_exceeded(silos, tmp_path, profile, epsilon):
    config = make_config({"budget": {"epsilon": epsilon, "profile": profile}, "participation": {"rounds": 60}})
    train(config, silos, tmp_path)
    sampler = PoissonLots(cohort=8, rounds=60).lots(clients=4, seed=0, steps=1, records=100).describe()
    allowed = calibration.rounds_allowed(profile, sampler, 2.0, 1e-4, epsilon, claims=CLAIMS)
    assert json.loads((tmp_path / "training.json").read_text())["rounds_run"] == allowed < 60
    assert calibration.epsilon_after(profile, sampler, 2.0, allowed, 1e-4, claims=CLAIMS) <= epsilon
    assert calibration.epsilon_after(profile, sampler, 2.0, allowed + 1, 1e-4, claims=CLAIMS) > epsilon


def test_a_budget_that_must_hold_counts_both_releases_of_a_lot(silos, tmp_path):
    """The claim leaves the second one out, as the paper does; what holds is one Gaussian of multiplier z / sqrt(2)."""
    for profile, z, orders, tight in (
        ("holds", 2.0 / math.sqrt(2), HOLDING_ORDERS, True),
        ("as_claimed", 2.0, WHOLE_ORDERS.orders, False),
    ):
        budget = {"epsilon": 2.0, "profile": profile}
        config = make_config(SCALAR, {"budget": budget, "participation": {"rounds": 500}})
        found = rounds_of(config, silos, tmp_path).clients.entry.budget
        cost = renyi(z, 8 / 100, orders)
        allowed = sum(epsilon_of(count * cost, orders, 1e-4, tight=tight) <= 2.0 for count in range(1, 500))
        assert 0 < allowed < 499
        assert found.allows(allowed) and not found.allows(allowed + 1)


def test_noise_that_may_fall_is_accounted_for_at_its_floor(silos, tmp_path):
    """Six rounds of two lots, a validation after each: at most one fall in two lots, whatever the losses were."""
    steps = {"client_update": {"inner_steps": 2}, "participation": {"rounds": 6}}
    config = make_config(DECAY, steps)
    train(config, silos, tmp_path)
    worst = tuple((2.0 * 0.9**fall, 2) for fall in range(6))
    found = accounted(config, tmp_path)["profiles"]["holds"]
    assert found["status"] == "proved"
    assert found["epsilon_high"] == pytest.approx(upper_epsilon(worst, 8 / 100, 1e-4), rel=1e-9)


def test_a_budget_that_no_round_fits_is_refused(silos, tmp_path):
    for overlay in ({}, DECAY):
        with pytest.raises(BenchError, match="first round"):
            train(make_config(overlay, {"budget": {"epsilon": 0.01}}), silos, tmp_path)
