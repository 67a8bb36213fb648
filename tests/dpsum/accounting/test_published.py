"""The figures of docs/privacy.md: those stated and found again, and those corrected
there.
"""

import math
from pathlib import Path

import pytest

from dpsum.accounting.analyses import poisson
from dpsum.accounting.gaussian import gaussian_epsilon
from tools.published_epsilons import (
    central_limit_epsilon,
    checked_figures,
    literal_rounds,
    mean_form_collapse,
    quantile_noise_factor,
    sample_level_epsilon,
    shuffled_lower_epsilon,
)


@pytest.mark.parametrize(
    ("parties", "limit", "composed"), [(4, 4.065, 4.262), (8, 6.091, 6.436)]
)
def test_dp_fnas_by_its_central_limit_and_as_it_composes(parties, limit, composed):
    """sigma = 1, B = 64, 50 epochs over half of 50,000 records split among the parties;
    the limit is no upper end.
    """
    records = 25_000 // parties
    rate, steps = 64 / records, 50 * records // 64
    assert round(central_limit_epsilon(1.0, rate, steps, 1e-5), 3) == limit
    high = poisson.upper_epsilon(((1.0, steps),), rate, 1e-5)
    low = poisson.lower_epsilon(((1.0, steps),), rate, 1e-5)
    assert round(high, 3) == composed
    assert limit < low <= high <= low + 0.01
    # e^(1/sigma^2 - 1) is 1 at sigma = 1, and so e - 1 times less than the theorem it
    # rests on.
    printed = central_limit_epsilon(1.0, rate, steps, 1e-5, as_printed=True)
    assert printed == gaussian_epsilon(1 / (rate * math.sqrt(steps)), 1e-5) < limit


def test_eq_10_of_adap_dp_fl_as_printed_allows_seven_rounds():
    """At order 11 by hand: (2 x 10 - log 1e5) / E (dP/dQ)^11."""
    assert [literal_rounds(z, 78 / 6000, 2.0, 1e-5) for z in (1.1, 3.0, 6.0)] == [
        7,
        109,
        113,
    ]
    q, a = 78 / 6000, 11
    moment = sum(
        math.comb(a, i) * q**i * (1 - q) ** (a - i) * math.exp((i * i - i) / (2 * 1.21))
        for i in range(a + 1)
    )
    assert math.floor((2.0 * 10 - math.log(1e5)) / moment) == 7


def test_a_private_quantile_costs_next_to_nothing():
    assert round(quantile_noise_factor(1.0, 1600 / 20), 5) == 1.00002
    # Both together are the one Gaussian that they were split from.
    z = quantile_noise_factor(1.0, 0.7)
    assert (z**-2 + (2 * 0.7) ** -2) ** -0.5 == pytest.approx(1.0)


def test_the_mean_form_collapses_with_its_noise():
    """By hand: each window's worth of rounds C shrinks by about sqrt(d) / L = 0.209;
    with d = L^2 it stays.
    """
    found = mean_form_collapse(dimension=111_936, cohort=1600, rounds=250)
    assert 1e-20 < found < 1e-18
    assert mean_form_collapse(
        dimension=1600**2, cohort=1600, rounds=250
    ) == pytest.approx(0.2, rel=0.05)


def test_single_gaussians_of_the_papers():
    assert gaussian_epsilon(1.634, 1e-5) == pytest.approx(
        2.5, abs=1e-3
    )  # DP-AGRLR's z0
    assert gaussian_epsilon(2.904, 1e-6) == pytest.approx(1.5, abs=1e-3)
    assert (
        round(gaussian_epsilon(0.585 / math.sqrt(5), 1e-3), 1) == 18.4
    )  # Reptile: five full-batch steps
    assert round(gaussian_epsilon(0.585, 1e-3), 2) == 6.18  # five disjoint batches
    assert (
        round(gaussian_epsilon(1 / math.sqrt(1 + 10**2), 1e-5), 1) == 92.5
    )  # sample level, second order


def test_shuffled_batches_are_corrected():
    """0.340 and 0.105 are printed for z = 2 and 3: the event max x > c gives 0.371 and
    0.064.
    """
    assert [
        round(shuffled_lower_epsilon(z, 250, 1e-6), 3) for z in (1.0, 2.0, 3.0)
    ] == [4.438, 0.371, 0.064]


def test_the_sample_level_claim_of_dp_maml_is_that_of_4000_units():
    """1.18 is printed for lots of 10 at z = 1, without N.

    By hand, at order 11: 400 times the Renyi divergence of one Poisson-sampled Gaussian
    at q = 1/400, plus log(1e5) / 10. It is 1.17751, which 1.177 cuts off. 23,000
    records in lots of 10, 50 or 100 do not give it.
    """
    q, order = 1 / 400, 11
    moment = sum(
        math.comb(order, i) * q**i * (1 - q) ** (order - i) * math.exp((i * i - i) / 2)
        for i in range(order + 1)
    )
    by_hand = (400 * math.log(moment) + math.log(1e5)) / (order - 1)
    found = sample_level_epsilon(units=4_000, lot=10)
    assert found == pytest.approx(by_hand, abs=1e-9)
    assert f"{found:.2f}" == "1.18"
    # N may lie between 3,450 and 4,020.
    rounded = [
        f"{sample_level_epsilon(units=units, lot=10):.2f}"
        for units in (3_440, 3_450, 4_020, 4_030)
    ]
    assert rounded == ["1.19", "1.18", "1.18", "1.17"]
    records = [sample_level_epsilon(units=23_000, lot=lot) for lot in (10, 50, 100)]
    assert [f"{value:.3f}" for value in records] == ["0.831", "1.094", "1.324"]


def test_the_page_shows_what_is_found():
    page = (Path(__file__).resolve().parents[3] / "docs" / "privacy.md").read_text(
        encoding="utf-8"
    )
    missing = [
        figure
        for figure in checked_figures()
        if f"| {' | '.join(figure)} |" not in page
    ]
    assert not missing
