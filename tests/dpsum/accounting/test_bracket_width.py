"""The account says how wide a bracket is and why, where it is wide; by mpmath."""

import math
import re

import numpy as np
import pytest

import dpsum
from dpsum.accounting.account import account
from tests.dpsum.accounting.test_fine_brackets import one_round


def ledger_of(participation, z, path):
    """Write the ledger of all rounds, of units that contribute ones."""
    mechanism = dpsum.Mechanism(
        name="sum",
        unit="client",
        observer="everyone",
        dimension=2,
        participation=participation,
        clipping=dpsum.Constant(1.0),
        noise=dpsum.Gaussian(z),
        ledger=path,
        seed=1,
    )
    for index in range(participation.rounds):
        total = mechanism.open(index)
        total.add(np.ones((len(participation.cohort(index)), 2)))
        mechanism.release(total)
    return path


def gaussian(z, delta):
    """Epsilon of one Gaussian release, as one that is sampled at a rate of 1."""
    return one_round(z, 1.0, delta)


def width(explanation):
    """The width that an explanation states, its share of the low end, and the reason."""
    found = re.search(
        r"the high end is (\S+) above the low end \((\S+) % of it\), since (.*)",
        explanation,
    )
    assert found is not None, explanation
    return float(found[1]), float(found[2]) / 100, found[3]


def test_account_says_that_no_grid_is_made_for_a_tiny_delta(tmp_path):
    """The low end is that of delta = 1e-300, the high end that of a known cohort."""
    plan = dpsum.Poisson(units=6, cohort=3, rounds=1, seed=0)
    path = ledger_of(plan, 1.0, tmp_path / "ledger.jsonl")
    stated, share, reason = width(
        account(path, delta=1e-303).profiles["holds"].explanation
    )
    low, high = one_round(1.0, 0.5, "1e-300"), gaussian(1.0, "1e-303")
    assert stated == pytest.approx(high - low, rel=0.05)
    assert share == pytest.approx((high - low) / low, rel=0.05)
    assert reason.startswith("no grid is made below delta = 1e-300")


def test_account_says_that_balls_and_bins_has_no_grid_below_its_least_delta(tmp_path):
    """With all rounds run the ends in closed form are a Gaussian's epsilon, and that
    less log T.
    """
    plan = dpsum.BallsAndBins(units=200, cohort=2, rounds=100, seed=0)
    path = ledger_of(plan, 1.0, tmp_path / "ledger.jsonl")
    stated, share, reason = width(
        account(path, delta=1e-31).profiles["holds"].explanation
    )
    assert stated == pytest.approx(math.log(100), abs=0.006)
    low = gaussian(1.0, "1e-31") - math.log(100)
    assert share == pytest.approx(math.log(100) / low, abs=6e-4)
    assert reason.startswith("no grid is made below delta = 1e-30,")


def test_replace_one_has_a_sentence_of_its_own_bracket(tmp_path):
    """The bracket of zero-out is narrow. That of two changes is wide, and its low end
    is that of zero-out, here of one round.
    """
    plan = dpsum.Poisson(units=100, cohort=10, rounds=1, seed=0)
    path = ledger_of(plan, 1.0, tmp_path / "ledger.jsonl")
    profiles = account(path, delta=1e-5).profiles
    assert "above the low end" not in profiles["holds"].explanation
    replaced = profiles["replace_one"]
    stated, _, reason = width(replaced.explanation)
    low = one_round(1.0, 0.1, "1e-5")
    assert stated == pytest.approx(replaced.epsilon_high - low, rel=0.01)
    assert reason.endswith("counts its replacement as two changes")


def test_fixed_size_has_a_gap_of_theory_in_both_profiles(tmp_path):
    plan = dpsum.FixedSize(units=100, cohort=10, rounds=60, seed=0)
    path = ledger_of(plan, 0.4, tmp_path / "ledger.jsonl")
    profiles = account(path, delta=1e-5).profiles
    for name in ("holds", "replace_one"):
        entry = profiles[name]
        stated, _, reason = width(entry.explanation)
        assert stated == pytest.approx(entry.epsilon_high - entry.epsilon_low, rel=0.01)
        assert reason.endswith("no theory says what lies between")
        assert entry.explanation.count("above the low end") == 1


@pytest.mark.parametrize("way", [dpsum.OnePass, dpsum.Poisson, dpsum.BallsAndBins])
def test_a_narrow_bracket_has_no_sentence(way, tmp_path):
    path = ledger_of(
        way(units=100, cohort=25, rounds=4, seed=0), 1.0, tmp_path / "ledger.jsonl"
    )
    assert "above the low end" not in (
        account(path, delta=1e-5).profiles["holds"].explanation
    )
