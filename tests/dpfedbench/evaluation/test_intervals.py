"""Intervals of a mean, by hand and by scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import mean_interval


def test_mean_interval_by_hand():
    """60, 62 and 67: squares 9 + 1 + 16 over n - 1 = 2, and Student's t of two degrees
    of freedom, 4.302653 (tables), over the root of n = 3.
    """
    interval = mean_interval([60.0, 62.0, 67.0])
    half = 4.302653 * math.sqrt(26 / 2) / math.sqrt(3)
    assert interval.mean == pytest.approx(63)
    assert interval.low == pytest.approx(63 - half, rel=1e-6)
    assert interval.high == pytest.approx(63 + half, rel=1e-6)


def test_mean_interval_is_scipys_t_interval():
    values = np.random.default_rng(0).normal(70, 8, 25)
    for sample in (values, values[:3]):
        interval = mean_interval(list(sample))
        mean = sample.mean()
        ends = stats.t.interval(
            0.95, len(sample) - 1, loc=mean, scale=stats.sem(sample)
        )
        computed = (interval.mean, interval.low, interval.high)
        assert computed == pytest.approx((mean, *ends))


def test_interval_of_one_value_has_no_ends():
    interval = mean_interval([50.0])
    assert interval.mean == 50
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    with pytest.raises(BenchError, match="not finite"):
        mean_interval([1.0, math.nan])
