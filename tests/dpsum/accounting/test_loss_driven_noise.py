"""Noise that follows a loss: its mark in the ledger, and accounts of runs that rest on it."""

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest

import dpsum
from dpsum.accounting.account import account
from dpsum.accounting.context import AccountContext
from dpsum.budget import Budget
from tests.dpsum.accounting.helpers import dp_accounting_epsilon
from tests.dpsum.helpers import make_mechanism, make_release

DELTA = 1e-4
RATE = 0.08
LOTS = 40
BUDGET = Budget(epsilon=9.0, delta=DELTA, profile="proven")


def lines_of(multipliers, **changes):
    """Return lines of Poisson lots: 8 of 100 records of each client."""
    sampler = {
        "kind": "poisson-lots",
        "clients": 4,
        "records": 100,
        "cohort": 100 * RATE,
        "rounds": len(multipliers),
        "rate": RATE,
    }
    fields = {"unit": "record", "observer": "server", "sampler": sampler}
    return [
        make_release(round=index, z=z, **fields | changes)
        for index, z in enumerate(multipliers)
    ]


def proven_of(lines, delta=DELTA, **context):
    return account(lines, delta=delta, context=AccountContext(**context)).profiles[
        "proven"
    ]


CONSTANT = [2.0] * LOTS
FALLING = [2.0 * 0.9 ** (index // 3) for index in range(LOTS)]


def released_losses(tmp_path, losses, noise):
    """Return the path of the ledger of a run that observes these losses."""
    path = tmp_path / "ledger.jsonl"
    lots = dpsum.PoissonLots(lot=10, rounds=12)
    mechanism = make_mechanism(
        unit="record",
        clipping=dpsum.Constant(1.0),
        noise=noise,
        budget=Budget(epsilon=50.0, delta=1e-5, profile="proven"),
        participation=lots.lots(clients=1, seed=1, steps=1, records=100),
        dimension=2,
        ledger=path,
    )
    for index, loss in enumerate(losses):
        mechanism.release(mechanism.begin_round(index))
        mechanism.composition.observe(loss)
    return path


RISING_LOSSES = [1.0 + index for index in range(12)]


def test_loss_driven_noise_that_did_not_move_is_as_run_by_its_ledger_alone(tmp_path):
    """Twelve lots of q = 0.1 and z = 1.5 have epsilon 1.385 (dp_accounting)."""
    noise = dpsum.Decaying(1.5, decay=0.8, falls=3)
    path = released_losses(tmp_path, RISING_LOSSES, noise)
    lines = dpsum.read_ledger(path)
    assert {line.noise_multiplier for line in lines} == {1.5}
    assert {line.follows_loss for line in lines} == {True}
    entry = dpsum.account(path, delta=1e-5).profiles["proven"]
    as_run = dp_accounting_epsilon([(1.5, 12, 0.1)], 1e-5)
    assert as_run == pytest.approx(1.385, abs=1e-3)
    assert entry.status == "as run"
    assert entry.epsilon_high == pytest.approx(as_run, rel=1e-3)


def test_loss_driven_noise_is_proved_at_the_schedule_of_every_fall(tmp_path):
    """z falls by 0.8 at most once in three lots: epsilon 3.897 (dp_accounting)."""
    noise = dpsum.Decaying(1.5, decay=0.8, falls=3)
    path = released_losses(tmp_path, RISING_LOSSES, noise)
    entry = proven_of(dpsum.read_ledger(path), 1e-5, decay_step=(0.8, 3))
    stages = [(1.5 * 0.8**fall, 3, 0.1) for fall in range(4)]
    expected = dp_accounting_epsilon(stages, 1e-5)
    assert expected == pytest.approx(3.897, abs=1e-3)
    assert entry.status == "proved"
    assert entry.epsilon_high == pytest.approx(expected, rel=1e-3)


def test_fixed_noise_is_proved_by_its_ledger_alone(tmp_path):
    path = released_losses(tmp_path, RISING_LOSSES, dpsum.Gaussian(1.5))
    assert {line.follows_loss for line in dpsum.read_ledger(path)} == {None}
    assert "follows_loss" not in path.read_text()
    assert dpsum.account(path, delta=1e-5).profiles["proven"].status == "proved"


@pytest.mark.parametrize("value", [False, 1, "yes"])
def test_ledger_refuses_another_mark_of_noise_that_follows_a_loss(value):
    with pytest.raises(ValueError, match=r"follows_loss is .*: it is true or missing"):
        make_release(follows_loss=value)


@pytest.mark.parametrize("moving", ["a", "b"])
def test_account_of_two_parts_is_as_run_where_one_part_is(moving):
    """The other part has the larger epsilon, or the smaller."""
    multipliers = {"a": [1.0] * 4, "b": [3.0] * 4}
    lines = []
    for part, values in multipliers.items():
        mark = True if part == moving else None
        lines += lines_of(values, name=part, part=part, follows_loss=mark)
    lines.sort(key=lambda line: line.round)
    worst = dp_accounting_epsilon([(1.0, 4, RATE)], DELTA)
    entry = proven_of(lines)
    assert entry.status == "as run"
    assert entry.epsilon_high == pytest.approx(worst, rel=2e-3)


# Runs that rest on a run whose noise followed a loss


def divergences(z, lots, orders):
    """Return Renyi divergences of Poisson lots by dp_accounting, at each order."""
    accountant = dp_accounting.rdp.RdpAccountant(orders)
    event = dp_accounting.GaussianDpEvent(z)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(RATE, event), lots)
    return np.array(accountant._rdp)


def test_run_that_rests_on_a_filter_has_its_budget_and_its_own_divergence():
    """The filter has one order: that at which lots of z = 2 fit in most often. Its
    budget B is what converts to epsilon 9 (Canonne, Kamath and Steinke 2020,
    Proposition 12), so that B + rho converts to 9 + rho.
    """
    orders = list(range(2, 257))
    gains = [
        math.log(DELTA) / (order - 1)
        - math.log1p(-1 / order)
        + math.log(order) / (order - 1)
        for order in orders
    ]
    lots = (9.0 + np.array(gains)) / divergences(2.0, 1, orders)
    order = orders[int(np.argmax(lots))]
    (rho,) = divergences(20.0, LOTS, [order])
    first = lines_of(CONSTANT, follows_loss=True)
    alone = proven_of(first, budget=BUDGET)
    assert (alone.status, alone.epsilon_high) == ("proved", pytest.approx(9.0))
    entry = proven_of(
        lines_of([20.0] * LOTS),
        before=tuple(first),
        before_context=AccountContext(budget=BUDGET),
    )
    assert entry.status == "proved"
    assert entry.epsilon_high == pytest.approx(9.0 + rho, rel=1e-6)
    assert rho > 1e-4


# Faster than noise that falls: noise that stays, of one stage in place of many.
@pytest.mark.parametrize(
    "multipliers", [CONSTANT, pytest.param(FALLING, marks=pytest.mark.slow)]
)
def test_run_that_rests_on_noise_without_a_proof_is_as_run(multipliers):
    """Both runs' lots, composed by dp_accounting."""
    first = lines_of(multipliers, follows_loss=True)
    alone = proven_of(first)
    entry = proven_of(lines_of([20.0] * LOTS), before=tuple(first))
    stages = [(z, multipliers.count(z), RATE) for z in dict.fromkeys(multipliers)]
    expected = dp_accounting_epsilon([*stages, (20.0, LOTS, RATE)], DELTA)
    assert entry.status == "as run"
    assert entry.epsilon_high == pytest.approx(expected, rel=2e-3)
    assert entry.epsilon_high > alone.epsilon_high


def test_run_that_rests_on_a_declared_decay_has_the_schedule_of_every_fall():
    """z = 2 falls by 0.9 at most once in 8 lots: five stages, and the second run."""
    entry = proven_of(
        lines_of([20.0] * LOTS),
        before=tuple(lines_of(CONSTANT, follows_loss=True)),
        before_context=AccountContext(decay_step=(0.9, 8)),
    )
    stages = [(2.0 * 0.9**fall, 8, RATE) for fall in range(5)]
    expected = dp_accounting_epsilon([*stages, (20.0, LOTS, RATE)], DELTA)
    assert entry.status == "proved"
    assert entry.epsilon_high == pytest.approx(expected, rel=2e-3)


def test_two_filters_add_their_budgets_at_the_lower_order():
    """Both runs keep budgets of one order, 9 and 4 in epsilon: below 13 + the gain of
    one conversion, and above the larger.
    """
    second_budget = dataclasses.replace(BUDGET, epsilon=4.0)
    first = lines_of(CONSTANT, follows_loss=True)
    second = lines_of([6.0] * LOTS, follows_loss=True)
    entry = proven_of(
        second,
        budget=second_budget,
        before=tuple(first),
        before_context=AccountContext(budget=BUDGET),
    )
    assert entry.status == "proved"
    budgets = []
    for z, epsilon in ((2.0, 9.0), (6.0, 4.0)):
        best = (0.0, 0, 0.0)
        for order in range(2, 257):
            budget = epsilon + math.log(DELTA) / (order - 1)
            budget += math.log(order) / (order - 1) - math.log1p(-1 / order)
            (lot,) = divergences(z, 1, [order])
            best = max(best, (budget / lot, order, budget))
        budgets.append(best[1:])
    order = min(budgets)[0]
    total = sum(budget for _, budget in budgets)
    expected = total - math.log(DELTA) / (order - 1)
    expected += math.log1p(-1 / order) - math.log(order) / (order - 1)
    assert entry.epsilon_high == pytest.approx(expected, rel=1e-6)
    assert expected > 9.0


def test_run_whose_own_noise_follows_a_loss_is_as_run_on_a_proved_run():
    entry = proven_of(
        lines_of([20.0] * LOTS, follows_loss=True),
        before=tuple(lines_of(CONSTANT)),
    )
    assert entry.status == "as run"
