"""Audits over many runs: leaks from one round into the next."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedbench.audit.attacks import (
    Spread,
    leak_of,
    many_runs,
    mean_of_raw_norms,
    percentile_of_raw_norms,
)
from dpfedbench.audit.canaries import ClientSource, Units, run_rounds
from dpfedbench.config.part import kinds_of
from dpfedbench.parts.clipping.reference import MedianOfRun
from dpsum.clipping import ClippingRule
from dpsum.mechanism import Mechanism

from .conftest import LOTS, make_config

LEVEL = {"delta": 1e-6, "confidence": 0.95}
TINY = {"clients": {"count": 60}, "participation": {"cohort": 10, "rounds": 3}}


def raw_percentile(percentile=90, **overlay):
    """Return a run whose threshold is a percentile of the last round's raw norms."""
    rule = {"kind": "percentile-of-raw-norms", "window": 1, "percentile": percentile}
    return make_config(TINY, {"clipping": rule}, overlay)


def percentile_bound(config, percentile=90, runs=200):
    """Return the bound of the attack on a percentile of raw norms, for any rule."""
    rule = raw_percentile(percentile).clipping
    first = config.clipping.threshold
    score = percentile_of_raw_norms.score(config, rule, records=0, first=first)
    return many_runs(score, config, runs=runs, **LEVEL).epsilon


@pytest.mark.parametrize(
    ("percentile", "runs", "least"),
    [
        (10, 200, 3.5),
        (50, 200, 3.5),
        # Faster: the two above, of a fifth of the runs.
        pytest.param(90, 1000, 5.0, marks=pytest.mark.slow),
    ],
)
def test_percentile_of_raw_norms_is_flagged_and_its_control_is_not(
    percentile, runs, least
):
    """1,000 of 1,000 right without a false alarm is 5.6. The control reads releases."""
    flagged = percentile_bound(raw_percentile(percentile), percentile, runs)
    control = make_config(TINY, {"clipping": {"window": 1, "percentile": percentile}})
    clear = percentile_bound(control, percentile)
    assert flagged >= max(least, clear + 1.5)
    assert clear < 0.5


MEAN = {
    "participation": {"rounds": 12, "lot": 40},
    "clients": {"count": 10, "fragments": 10},
    "clipping": {"kind": "mean-of-raw-norms"},
}
RECORDS = {"records": 200, "first": 1.0}


def test_mean_of_raw_norms_is_flagged_and_its_control_is_not():
    """Another lot follows each of eleven: the chance is 1 - 0.8^11 = 0.91."""
    config = make_config(LOTS, MEAN)
    flagged = leak_of(config, config.clipping, **RECORDS, runs=200, **LEVEL)
    control = make_config(LOTS, MEAN, {"clipping": {"kind": "norm-of-release"}})
    score = mean_of_raw_norms.score(control, config.clipping, **RECORDS)
    clear = many_runs(score, control, runs=200, **LEVEL)
    assert flagged.numbers["power"] == pytest.approx(0.91, abs=0.08)
    assert flagged.epsilon >= max(3.5, clear.epsilon + 1.5)


def budget(epsilon, delta=1e-5):
    return {"budget": {"epsilon": epsilon, "delta": delta, "profile": "claimed"}}


def test_attack_on_the_mean_of_raw_norms_reads_the_rounds_of_the_budget():
    """The budget ends after some of the 12 rounds."""
    config = make_config(LOTS, MEAN, budget(8.0))
    bound = leak_of(config, config.clipping, **RECORDS, runs=100, **LEVEL)
    assert bound.epsilon >= 2.0


@pytest.mark.parametrize(
    ("config", "records"),
    [
        (raw_percentile(**budget(3.0, 1e-6)), 0),
        (make_config(LOTS, MEAN, budget(0.5)), 200),
    ],
    ids=["clients", "records"],
)
def test_attack_beyond_the_budget_of_a_run_has_no_bound(config, records):
    """The budgets have no room for the rounds that the attacks read."""
    options = {"records": records, "first": 1.0, "runs": 100}
    bound = leak_of(config, config.clipping, **options, **LEVEL)
    assert math.isnan(bound.epsilon)
    assert "more rounds than the run has" in bound.reason


def test_private_quantile_repairs_the_percentile_of_raw_norms():
    """The proven epsilon at z = 1 is 4.9, and 200 runs a side could show 3.9."""
    rule = {"kind": "private-quantile", "percentile": 90, "never_rising": False}
    config = make_config(TINY, {"clipping": rule | {"count_noise": 2.0}})
    assert percentile_bound(config) < 0.5


def count_score(config):
    """Attack a denominator that counts the cohort: one client is present or absent."""
    units = Units.without_canaries(np.zeros((config.clients.count, 1)))
    rounds = config.participation.rounds

    def score(present, seed):
        run = config.replace(seed=seed)
        plan = run.participation.plan(clients=run.clients.count, seed=seed)
        shown = SimpleNamespace(
            denominator=plan.denominator,
            describe=plan.describe,
            sample_cohort=lambda index: np.setdiff1d(
                plan.sample_cohort(index), [] if present else [0]
            ),
        )
        spread = Spread()
        source = ClientSource(spread.net, units)
        run_rounds(run, source, spread, rounds=rounds, plan=shown)
        return [-float(np.min(spread.rounds))]

    return score


def divide_by_the_realised_cohort(self, total, finish=Mechanism.finish):
    self.denominator = float(max(1, total.sum.count))
    return finish(self, total)


def test_denominator_that_counts_the_cohort_is_flagged(monkeypatch):
    """Without one of two clients, a sum over the realised count is twice as large."""
    overlay = {
        "clients": {"count": 2},
        "participation": {"kind": "poisson", "cohort": 2, "rounds": 2},
        "clipping": {"kind": "constant"},
    }
    config = make_config(overlay)
    clear = many_runs(count_score(config), config, runs=200, **LEVEL)
    monkeypatch.setattr(Mechanism, "finish", divide_by_the_realised_cohort)
    flagged = many_runs(count_score(config), config, runs=200, **LEVEL)
    assert clear.epsilon < 0.5
    assert flagged.epsilon > 3.5


def test_rules_that_leak_from_round_to_round_have_an_attack_or_a_reason():
    attacked = (percentile_of_raw_norms.RULE, mean_of_raw_norms.RULE, MedianOfRun)
    for rule in kinds_of(ClippingRule).values():
        assert rule.private or issubclass(rule, attacked)

    class Leaking(ClippingRule):
        private = False

    rule = Leaking()
    bound = leak_of(raw_percentile(), rule, records=0, first=0.5, runs=10, **LEVEL)
    assert math.isnan(bound.epsilon)
    assert "Leaking is not private, and no attack is defined for it" in bound.reason
