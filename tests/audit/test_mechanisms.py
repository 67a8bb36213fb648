"""Audits over many runs: what leaks from one round into the next."""

import math

import numpy as np
import pytest

from dpfedbench.audit.mechanisms import (
    Without,
    count_score,
    lots_score,
    many_runs,
    percentile_score,
    raw_norm_audit,
)
from dpfedbench.errors import BenchError
from dpfedbench.federation.participation import make_participation

from .conftest import LOTS, make_config

AT = {"delta": 1e-6, "confidence": 0.95}
TINY = {"clients": {"count": 60}, "participation": {"cohort": 10, "rounds": 3}, "clipping": {"window": 1}}
RAW = {"clipping": {"rule": "percentile-of-raw-norms"}}


@pytest.mark.parametrize("percentile", [10, 50, 90])
def test_the_percentile_of_raw_norms_is_flagged_and_its_control_is_not(percentile):
    """1,000 runs a side: 1,000 right of 1,000 and no false alarm is 5.6 at most. The control reads only releases."""
    clipping = {"clipping": {"percentile": percentile}}
    leak = make_config(TINY, RAW, clipping)
    flagged = many_runs(percentile_score(leak), leak, runs=1000 if percentile == 90 else 200, **AT)
    control = make_config(TINY, clipping)
    clear = many_runs(percentile_score(control), control, runs=200, **AT)
    assert flagged.epsilon >= (5.0 if percentile == 90 else 3.5)
    assert flagged.epsilon >= clear.epsilon + 1.5
    assert clear.epsilon < 0.5


def test_the_private_quantile_repairs_the_percentile_of_raw_norms():
    """The attack that the raw percentile falls to says nothing here: the threshold follows a noised count."""
    clipping = {"rule": "private-quantile", "percentile": 90, "never_rising": False, "count_noise": 2.0}
    repaired = make_config(TINY, {"clipping": clipping})
    # What holds at z = 1 is 4.9; 200 runs a side could show 3.9.
    assert many_runs(percentile_score(repaired), repaired, runs=200, **AT).epsilon < 0.5


def test_the_mean_of_raw_norms_is_flagged_and_its_control_is_not():
    overlay = {"participation": {"rounds": 12, "cohort": 40}, "clients": {"count": 10, "fragments": 10}}
    raw = make_config(LOTS, overlay, {"clipping": {"rule": "mean-of-raw-norms"}})
    flagged = raw_norm_audit(raw, records=200, first=1.0, runs=200, **AT)
    control = make_config(LOTS, overlay, {"clipping": {"rule": "norm-of-release"}})
    clear = many_runs(lots_score(control, 200, 1.0), control, runs=200, **AT)
    # In at least one of the eleven lots that are followed by another with a chance of 1 - 0.8^11 = 0.91.
    assert flagged.found["power"] == pytest.approx(0.91, abs=0.08)
    assert flagged.epsilon >= max(3.5, clear.epsilon + 1.5)


def test_a_denominator_that_counts_who_came_is_flagged():
    """Two clients who always come: without one of them a sum over the realised count is twice as large."""

    class Counted:
        """The mutant: a plan whose denominator is the last cohort's size."""

        def __init__(self, plan):
            self.plan, self.last = plan, 1

        def cohort(self, index):
            found = self.plan.cohort(index)
            self.last = max(1, len(found))
            return found

        @property
        def denominator(self):
            return float(self.last)

        def describe(self):
            return self.plan.describe()

    overlay = {
        "clients": {"count": 2}, "participation": {"kind": "poisson", "cohort": 2, "rounds": 2},
        "clipping": {"rule": "constant"},
    }  # fmt: skip
    config = make_config(overlay)

    right = many_runs(count_score(config), config, runs=200, **AT)
    wrong = many_runs(count_score(config, plan=Counted), config, runs=200, **AT)
    assert right.epsilon < 0.5
    assert wrong.epsilon > 3.5


def test_without_takes_one_client_out_and_nothing_else():
    plan = make_participation("one-pass", clients=12, cohort=4, rounds=3, seed=0)
    absent = int(plan.cohort(1)[2])
    without = Without(plan, absent)
    assert [len(without.cohort(index)) for index in range(3)] == [4, 3, 4]
    assert without.denominator == 4 and without.describe() == plan.describe()


def test_an_attack_that_does_not_fit_says_so():
    config = make_config(TINY, RAW, {"participation": {"kind": "poisson"}})
    with pytest.raises(BenchError, match="one-pass"):
        percentile_score(config)
    found = raw_norm_audit(config, records=0, first=0.5, runs=10, **AT)
    assert math.isnan(found.epsilon) and "one-pass" in found.reason
    assert np.isnan(found.epsilon)
