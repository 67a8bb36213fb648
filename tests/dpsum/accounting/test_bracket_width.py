"""Explanations state how wide a bracket is and why; expected widths are by mpmath."""

import math
import re

import numpy as np
import pytest

import dpsum
from dpsum.accounting.account import account
from tests.dpsum.accounting.helpers import sampled_gaussian_epsilon
from tests.dpsum.helpers import make_mechanism


@pytest.fixture
def profiles_of(tmp_path):
    """Return the profiles of all rounds of a participation."""

    def run(participation, z, delta):
        path = tmp_path / "ledger.jsonl"
        mechanism = make_mechanism(
            dimension=2,
            participation=participation,
            clipping=dpsum.Constant(1.0),
            noise=dpsum.Gaussian(z),
            ledger=path,
            seed=1,
        )
        for index in range(participation.rounds):
            total = mechanism.begin_round(index)
            total.add(np.ones((len(participation.sample_cohort(index)), 2)))
            mechanism.release(total)
        return account(path, delta=delta).profiles

    return run


def stated_width(explanation):
    """Return the width that an explanation states, its share of the low end, and why."""
    match = re.search(
        r"the high end is (\S+) above the low end \((\S+) % of it\), since (.*)",
        explanation,
    )
    assert match is not None, explanation
    return float(match[1]), float(match[2]) / 100, match[3]


def test_explanation_states_that_no_grid_is_made_for_a_tiny_delta(profiles_of):
    """The low end is that of delta = 1e-300, the high end that of a known cohort."""
    plan = dpsum.Poisson(units=6, cohort=3, rounds=1, seed=0)
    explanation = profiles_of(plan, 1.0, 1e-303)["proven"].explanation
    width, share, reason = stated_width(explanation)
    low = sampled_gaussian_epsilon(1.0, 0.5, "1e-300")
    high = sampled_gaussian_epsilon(1.0, 1.0, "1e-303")
    assert width == pytest.approx(high - low, rel=0.05)
    assert share == pytest.approx((high - low) / low, rel=0.05)
    assert reason.startswith("no grid is made below delta = 1e-300")


def test_explanation_states_that_balls_and_bins_has_no_grid_for_a_tiny_delta(
    profiles_of,
):
    """The ends in closed form are a Gaussian's epsilon, and that less log T."""
    plan = dpsum.BallsAndBins(units=200, cohort=2, rounds=100, seed=0)
    explanation = profiles_of(plan, 1.0, 1e-31)["proven"].explanation
    width, share, reason = stated_width(explanation)
    assert width == pytest.approx(math.log(100), abs=0.006)
    low = sampled_gaussian_epsilon(1.0, 1.0, "1e-31") - math.log(100)
    assert share == pytest.approx(math.log(100) / low, abs=6e-4)
    assert reason.startswith("no grid is made below delta = 1e-30,")


def test_explanation_of_replace_one_is_of_its_own_bracket(profiles_of):
    """Its low end is that of zero-out, here of one round, whose bracket is narrow."""
    plan = dpsum.Poisson(units=100, cohort=10, rounds=1, seed=0)
    profiles = profiles_of(plan, 1.0, 1e-5)
    assert "above the low end" not in profiles["proven"].explanation
    replace_one = profiles["replace_one"]
    width, _, reason = stated_width(replace_one.explanation)
    low = sampled_gaussian_epsilon(1.0, 0.1, "1e-5")
    assert width == pytest.approx(replace_one.epsilon_high - low, rel=0.01)
    assert reason.endswith("counts its replacement as two changes")


def test_explanation_of_fixed_size_has_a_gap_of_theory(profiles_of):
    plan = dpsum.FixedSize(units=100, cohort=10, rounds=60, seed=0)
    profiles = profiles_of(plan, 0.4, 1e-5)
    for entry in (profiles["proven"], profiles["replace_one"]):
        width, _, reason = stated_width(entry.explanation)
        assert width == pytest.approx(entry.epsilon_high - entry.epsilon_low, rel=0.01)
        assert reason.endswith("no theory says what lies between")
        assert entry.explanation.count("above the low end") == 1


@pytest.mark.parametrize("kind", [dpsum.OnePass, dpsum.Poisson, dpsum.BallsAndBins])
def test_explanation_of_a_narrow_bracket_states_no_width(kind, profiles_of):
    plan = kind(units=100, cohort=25, rounds=4, seed=0)
    explanation = profiles_of(plan, 1.0, 1e-5)["proven"].explanation
    assert "above the low end" not in explanation
