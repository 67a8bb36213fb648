"""Intervals: against an independent source, and over what they are."""

import math

import numpy as np
import pytest
from scipy import stats

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import mean_interval, seeds_interval


def test_equals_scipys_t_interval() -> None:
    values = np.random.default_rng(0).normal(70, 8, 25)
    low, high = stats.t.interval(0.95, 24, loc=values.mean(), scale=stats.sem(values))
    found = mean_interval(list(values))
    assert found.mean == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (found.count, found.over) == (25, "tasks")


def test_three_seeds_by_hand() -> None:
    """Means 70, 72, 74: s = 2, t(0.975, 2) = 4.302653 (any t table), half = t * 2 /
    sqrt(3).
    """
    found = seeds_interval([[69, 71], [71, 73], [73, 75]])
    half = 4.302653 * 2 / math.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (72, 72 - half, 72 + half), rel=1e-6
    )
    assert (found.count, found.over) == (3, "seeds")


def test_one_seed_has_an_interval_over_its_tasks() -> None:
    assert seeds_interval([[60.0, 80.0, 70.0]]) == mean_interval(
        [60.0, 80.0, 70.0], over="tasks"
    )


def test_of_one_value_nothing_is_known() -> None:
    found = mean_interval([50.0])
    assert found.mean == 50 and math.isnan(found.low) and math.isnan(found.high)


def test_no_value_and_no_number_are_refused() -> None:
    with pytest.raises(BenchError, match="at least one"):
        mean_interval([])
    with pytest.raises(BenchError, match="not finite"):
        mean_interval([1.0, math.nan])


def test_covers_the_mean_as_often_as_it_says() -> None:
    """Of 2,000 intervals 95 % hold the mean; outside 0.93 to 0.97 by chance: below
    1e-4.
    """
    draws = np.random.default_rng(1).normal(0, 1, (2000, 5))
    hits = sum(
        interval.low <= 0 <= interval.high
        for interval in (mean_interval(list(row)) for row in draws)
    )
    assert 0.93 < hits / 2000 < 0.97
