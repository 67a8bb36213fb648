"""Explanations state how wide a bracket is and why; expected widths are by mpmath."""

import re

import numpy as np
import pytest

import dpsum
from dpsum.accounting.account import account
from tests.dpsum.accounting.helpers import sampled_gaussian_epsilon
from tests.dpsum.helpers import make_mechanism, release_rounds


def profiles_of(participation, z, delta):
    """Return the profiles of all rounds of a participation."""
    ledger = []
    mechanism = make_mechanism(
        dimension=2,
        participation=participation,
        clipping=dpsum.Constant(1.0),
        noise=dpsum.Gaussian(z),
        ledger=ledger,
        seed=1,
    )
    release_rounds(mechanism, np.ones((1, 2)), participation.rounds)
    return account(ledger, delta=delta).profiles


def stated_width(explanation):
    """Return the width that an explanation states, its share of the low end, and why."""
    match = re.search(
        r"the high end is (\S+) above the low end \((\S+) % of it\), since (.*)",
        explanation,
    )
    assert match is not None, explanation
    return float(match[1]), float(match[2]) / 100, match[3]


def test_explanation_states_that_no_grid_is_made_for_a_tiny_delta():
    """The low end is that of delta = 1e-300, the high end that of a known cohort."""
    plan = dpsum.Poisson(units=6, cohort=3, rounds=1, seed=0)
    explanation = profiles_of(plan, 1.0, 1e-303)["proven"].explanation
    width, share, reason = stated_width(explanation)
    low = sampled_gaussian_epsilon(1.0, 0.5, "1e-300")
    high = sampled_gaussian_epsilon(1.0, 1.0, "1e-303")
    assert width == pytest.approx(high - low, rel=0.05)
    assert share == pytest.approx((high - low) / low, rel=0.05)
    assert reason.startswith("no grid is made below delta = 1e-300")


def test_explanation_of_fixed_size_has_a_gap_of_theory():
    plan = dpsum.FixedSize(units=100, cohort=10, rounds=60, seed=0)
    profiles = profiles_of(plan, 0.4, 1e-5)
    for entry in (profiles["proven"], profiles["replace_one"]):
        width, _, reason = stated_width(entry.explanation)
        assert width == pytest.approx(entry.epsilon_high - entry.epsilon_low, rel=0.01)
        assert reason.endswith("no theory says what lies between")
        assert entry.explanation.count("above the low end") == 1
