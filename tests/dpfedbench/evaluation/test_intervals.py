"""Intervals, against an independent source."""

import math

import numpy as np
import pytest
from scipy import stats

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import mean_interval


def test_mean_interval_is_scipys_t_interval() -> None:
    values = np.random.default_rng(0).normal(70, 8, 25)
    expected = stats.t.interval(0.95, 24, loc=values.mean(), scale=stats.sem(values))
    interval = mean_interval(list(values))
    assert interval.mean == pytest.approx(values.mean())
    assert (interval.low, interval.high) == pytest.approx(expected)


def test_interval_over_three_seeds_by_hand() -> None:
    """Means 70, 72, 74: s = 2, t(0.975, 2) = 4.302653 (any t table), half = t * 2 /
    sqrt(3).
    """
    interval = mean_interval([70, 72, 74])
    half = 4.302653 * 2 / math.sqrt(3)
    expected = pytest.approx((72, 72 - half, 72 + half), rel=1e-6)
    assert (interval.mean, interval.low, interval.high) == expected


def test_interval_of_one_value_has_no_ends() -> None:
    interval = mean_interval([50.0])
    assert interval.mean == 50
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    with pytest.raises(BenchError, match="not finite"):
        mean_interval([1.0, math.nan])
