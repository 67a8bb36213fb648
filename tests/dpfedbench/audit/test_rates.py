"""Rates and their limits, against scipy.stats."""

import numpy as np
import pytest
from scipy import stats

from dpsum.audit.bounds import binomial_tail, largest_rate, least_rate


@pytest.mark.parametrize(
    ("trials", "rate"),
    [(1, 0.5), (7, 1e-9), (40, 0.3), (1000, 0.004), (5000, 0.9), (3, 1.0)],
)
def test_binomial_tail_is_scipys(trials, rate):
    counts = np.arange(-1, trials + 2)
    expected = stats.binom.sf(counts, trials, rate)
    assert binomial_tail(counts, trials, rate) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("trials", [1, 5, 2000])
@pytest.mark.parametrize("error", [0.025, 1e-6])
def test_rate_limits_are_scipys(trials, error):
    for hits in np.unique(np.linspace(0, trials, 50).astype(int)).tolist():
        test = stats.binomtest(hits, trials)
        low, high = test.proportion_ci(1 - 2 * error, "exact")
        assert least_rate(hits, trials, error) == pytest.approx(
            low, rel=1e-8, abs=1e-12
        )
        assert largest_rate(hits, trials, error) == pytest.approx(high, rel=1e-8)
