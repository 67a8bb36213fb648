"""The figures of docs/privacy.md: those that are found again, and those corrected."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from tools.published_epsilons import (
    compute_figures,
    literal_rounds,
    mean_form_collapse,
    sample_level_epsilon,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "privacy.md"


def sampled_moment(order, q, z):
    """Return E (dP/dQ)^order of one Poisson-sampled Gaussian, by the binomial sum."""
    count = np.arange(order + 1)
    return binom.pmf(count, order, q) @ np.exp(count * (count - 1) / (2 * z * z))


def test_equation_10_of_adap_dp_fl_as_printed_allows_seven_rounds():
    """At order 11 by hand: (2 x 10 - log 1e5) / E (dP/dQ)^11."""
    q = 78 / 6000
    by_hand = (2.0 * 10 - math.log(1e5)) / sampled_moment(11, q, 1.1)
    assert literal_rounds(1.1, q, 2.0, 1e-5) == math.floor(by_hand) == 7


def test_mean_form_collapses_with_its_noise():
    """By hand: in each window C shrinks by about sqrt(d) / L = 0.209."""
    collapsed = mean_form_collapse(dimension=111_936, cohort=1600, rounds=250)
    assert 1e-20 < collapsed < 1e-18
    stable = mean_form_collapse(dimension=1600**2, cohort=1600, rounds=250)
    assert stable == pytest.approx(0.2, rel=0.05)


def test_sample_level_claim_of_dp_maml_is_that_of_4000_units():
    """1.18 is printed for lots of 10 at z = 1, without N, which may be from 3,450 to
    4,020. By hand, at order 11: 400 times the Renyi divergence of one Poisson-sampled
    Gaussian at q = 1/400, plus log(1e5) / 10.
    """
    log_moment = math.log(sampled_moment(11, 1 / 400, 1.0))
    epsilon = sample_level_epsilon(units=4_000, lot=10)
    assert epsilon == pytest.approx((400 * log_moment + math.log(1e5)) / 10, abs=1e-9)
    units = (3_440, 3_450, 4_000, 4_020, 4_030)
    epsilons = [round(sample_level_epsilon(units=count, lot=10), 2) for count in units]
    assert epsilons == [1.19, 1.18, 1.18, 1.18, 1.17]


def test_privacy_page_shows_the_checked_figures():
    text = PAGE.read_text(encoding="utf-8")
    rows = [f"| {' | '.join(figure[:3])} |" for figure in compute_figures()]
    assert not [row for row in rows if row not in text]
