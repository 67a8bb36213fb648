"""Rates and their limits, against scipy.stats."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from dpsum.audit.bounds import binomial_tail, largest_rate, least_rate


@pytest.mark.parametrize(
    ("trials", "rate"),
    [
        (1, 0.5),
        (7, 1e-9),
        (40, 0.3),
        (1000, 0.004),
        (5000, 0.9),
        (3, 1.0),
    ],
)
def test_binomial_tail_is_scipys(trials, rate):
    counts = np.arange(-1, trials + 2)
    expected = stats.binom.sf(counts, trials, rate)
    assert binomial_tail(counts, trials, rate) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("trials", [1, 5, 2000])
@pytest.mark.parametrize("error", [0.025, 1e-6])
def test_rate_limits_are_scipys(trials, error):
    hits = np.unique(np.linspace(0, trials, 50).astype(int))
    intervals = [
        stats.binomtest(int(hit), trials).proportion_ci(1 - 2 * error, "exact")
        for hit in hits
    ]
    lows = [interval.low for interval in intervals]
    assert least_rate(hits, trials, error) == pytest.approx(lows, rel=1e-8, abs=1e-12)
    highs = [interval.high for interval in intervals]
    assert largest_rate(hits, trials, error) == pytest.approx(highs, rel=1e-8)


IMPORTS = """
import sys, numpy as np
from dpfedbench.audit import report
from dpsum.audit import bounds
x = np.linspace(-1, 1, 50)
level = {"delta": 1e-3, "confidence": 0.95}
bounds.clopper_pearson(x + 1, x, generator=np.random.default_rng(0), **level)
bounds.one_run_dp(bounds.guess(x, x > 0, 20), **level)
assert "scipy.stats" not in sys.modules
"""


def test_audit_does_not_import_scipys_distributions():
    """Importing them takes half of a short audit."""
    process = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
