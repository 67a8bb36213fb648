"""Cohorts drawn with replacement: their bracket beside integrals of data sets, and
beside one Gaussian.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpsum.accounting import analyses
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import fixed_size
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.errors import DpsumError
from dpwatch.accountants import fixed_draws


def integral(
    z: float,
    units: int,
    draws: int,
    delta: float,
    own: float,
    other: float,
    changed: float,
) -> float:
    """Epsilon of one round, both orders: a unit of `own` or `changed` among others of
    `other`, on a grid.
    """
    counts = np.arange(draws + 1)
    chances = binom.pmf(counts, draws, 1 / units)
    x = np.linspace(-draws - 14 * z, draws + 14 * z, 200_001)
    worlds = [
        sum(
            p * norm.pdf(x, (draws - k) * other + k * mine, z)
            for k, p in zip(counts, chances, strict=True)
        )
        for mine in (own, changed)
    ]
    step, found = x[1] - x[0], 0.0
    for one, two in (worlds, worlds[::-1]):
        low, high = 0.0, 200.0
        for _ in range(60):
            middle = (low + high) / 2
            above = (
                float(np.sum(np.maximum(one - math.exp(middle) * two, 0.0)) * step)
                > delta
            )
            low, high = (middle, high) if above else (low, middle)
        found = max(found, high)
    return found


@pytest.mark.parametrize(
    ("z", "units", "draws"), [(1.0, 50, 10), (2.0, 5, 5), (1.5, 200, 6)]
)
def test_no_data_set_of_one_round_is_above_the_high_end(
    z: float, units: int, draws: int
) -> None:
    """The worst of them reaches most of it: what is lost is the number of draws, which
    the bound tells.
    """
    high = fixed_draws.upper_epsilon(((z, 1),), units, draws, 1e-5)
    worst = max(
        integral(z, units, draws, 1e-5, *case)
        for case in ((1, -1, 0), (1, 1, 0), (1, 0, 0))
    )
    assert worst < high < 2.2 * worst
    replaced = fixed_draws.upper_epsilon(
        ((z, 1),), units, draws, 1e-5, fixed_size.REPLACE_ONE
    )
    worst = integral(z, units, draws, 1e-5, 1, -1, -1)
    assert worst < replaced < 2.2 * worst


def test_the_low_end_is_the_integral_of_its_data_set() -> None:
    found = fixed_draws.lower_epsilon(((1.0, 1),), 50, 10, 1e-5)
    assert found == pytest.approx(integral(1.0, 50, 10, 1e-5, 1, 0, 0), rel=5e-3)
    replaced = fixed_draws.lower_epsilon(
        ((2.0, 1),), 50, 10, 1e-5, fixed_size.REPLACE_ONE
    )
    assert replaced == pytest.approx(integral(2.0, 50, 10, 1e-5, 1, -1, -1), rel=5e-3)


def test_one_draw_is_a_cohort_of_one_without_replacement() -> None:
    with_, without = (
        fixed_draws.upper_epsilon(((1.0, 5),), 20, 1, 1e-5),
        fixed_size.upper_epsilon(((1.0, 5),), 1 / 20, 1e-5),
    )
    assert with_ == pytest.approx(without, rel=1e-6)


def test_a_unit_that_is_alone_is_in_every_draw() -> None:
    """Four draws of one unit, three rounds: one Gaussian of z / (4 x 3^1/2)."""
    wanted = gaussian_epsilon(10.0 / (4 * math.sqrt(3)), 1e-5)
    assert fixed_draws.upper_epsilon(((10.0, 3),), 1, 4, 1e-5) == pytest.approx(
        wanted, rel=1e-6
    )
    assert fixed_draws.lower_epsilon(((10.0, 3),), 1, 4, 1e-5) == pytest.approx(
        wanted, rel=1e-9
    )
    sampler = {"kind": "fixed-draws", "clients": 1, "cohort": 4, "rounds": 3, "rate": 4}
    events = Events.planned(((10.0, 3),), sampler)
    accountant = analyses.find("gaussian", "fixed-draws")
    assert accountant.bracket(events, 1e-5)[1] == pytest.approx(wanted, rel=1e-9)
    replaced = gaussian_epsilon(10.0 / (8 * math.sqrt(3)), 1e-5)
    assert accountant.replaced(events, 1e-5) == (
        pytest.approx(replaced, rel=1e-9),
        pytest.approx(replaced, rel=1e-9),
    )


def test_more_rounds_and_less_noise_cost_more() -> None:
    base = fixed_draws.upper_epsilon(((1.5, 6),), 50, 10, 1e-5)
    assert fixed_draws.upper_epsilon(((1.5, 12),), 50, 10, 1e-5) > 1.1 * base
    assert fixed_draws.upper_epsilon(((1.2, 6),), 50, 10, 1e-5) > 1.1 * base
    assert fixed_draws.upper_epsilon(((1.5, 6),), 50, 20, 1e-5) > 1.1 * base
    assert base > fixed_size.upper_epsilon(((1.5, 6),), 0.2, 1e-5)


def test_the_sampler_is_checked() -> None:
    analysis = analyses.find("gaussian", "fixed-draws")
    right = {
        "kind": "fixed-draws",
        "clients": 50,
        "cohort": 10,
        "rounds": 6,
        "rate": 0.2,
    }
    analysis.check(right)
    for wrong in ({"rate": 0.3}, {"cohort": 2.5, "rate": 0.05}, {"clients": 0}):
        with pytest.raises(DpsumError, match="do not fit together"):
            analysis.check(right | wrong)
