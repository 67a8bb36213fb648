"""Rates and their limits, against scipy.stats."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from dpsum.audit.bounds import binomial_tail, largest_rate, least_rate


@pytest.mark.parametrize(
    ("trials", "rate"),
    [(1, 0.5), (7, 1e-9), (40, 0.3), (1000, 0.004), (5000, 0.9), (3, 1.0)],
)
def test_a_binomial_is_scipys(trials, rate):
    counts = np.arange(-1, trials + 2)
    assert binomial_tail(counts, trials, rate) == pytest.approx(
        stats.binom.sf(counts, trials, rate), rel=1e-9
    )


@pytest.mark.parametrize("trials", [1, 5, 2000])
@pytest.mark.parametrize("error", [0.025, 1e-6])
def test_limits_are_scipys(trials, error):
    hits = np.unique(np.linspace(0, trials, 50).astype(int))
    found = [
        stats.binomtest(int(hit), trials).proportion_ci(1 - 2 * error, "exact")
        for hit in hits
    ]
    assert least_rate(hits, trials, error) == pytest.approx(
        [limits.low for limits in found], rel=1e-8, abs=1e-12
    )
    assert largest_rate(hits, trials, error) == pytest.approx(
        [limits.high for limits in found], rel=1e-8
    )


def test_an_audit_does_not_load_scipys_distributions():
    """Loading them took half of a short audit."""
    code = (
        "import sys, numpy as np\nfrom dpfedbench.audit import report\nfrom dpsum.audit"
        " import bounds\nx = np.linspace(-1, 1, 50)\nbounds.clopper_pearson(x + 1, x,"
        " delta=1e-3, confidence=0.95,"
        " generator=np.random.default_rng(0))\nbounds.one_run_dp(bounds.guess(x, x > 0,"
        " 20), delta=1e-3, confidence=0.95)\nassert 'scipy.stats' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
