"""Intervals, against an independent source."""

import math

import numpy as np
import pytest
from scipy import stats

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import mean_interval


def test_mean_interval_is_scipys_t_interval() -> None:
    values = np.random.default_rng(0).normal(70, 8, 25)
    for some in (values, values[:3]):
        interval = mean_interval(list(some))
        mean = some.mean()
        ends = stats.t.interval(0.95, len(some) - 1, loc=mean, scale=stats.sem(some))
        found = (interval.mean, interval.low, interval.high)
        assert found == pytest.approx((mean, *ends))


def test_interval_of_one_value_has_no_ends() -> None:
    interval = mean_interval([50.0])
    assert interval.mean == 50
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    with pytest.raises(BenchError, match="not finite"):
        mean_interval([1.0, math.nan])
