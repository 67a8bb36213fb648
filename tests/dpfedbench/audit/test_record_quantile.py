"""Audits of the private quantile of records, on both of its releases, and mutants."""

import dataclasses
import math

import numpy as np
import pytest

from dpfedbench.audit.canaries import (
    CanaryExperiment,
    Coordinates,
    RecordSource,
    audit_seed,
    run_rounds,
)
from dpfedbench.audit.report import audit, family_of
from dpfedbench.audit.units import LARGE, Units
from dploss.gaussian import gaussian_epsilon
from dpsum import mechanism
from dpsum.accounting.analyses import find
from dpsum.accounting.analyses.poisson import upper_epsilon
from dpsum.audit.bounds import guess_surest, one_run_dp
from dpsum.audit.ranks import Family
from dpsum.clipping import PrivateQuantile
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

from . import conftest
from .conftest import LOTS, make_config
from .test_report import DECAY

CLIENTS = 600
RECORDS = 6
ROUNDS = 6
DELTA = 1e-3
Z = 4.0
RULE = {"kind": "private-quantile", "percentile": 50, "never_rising": False}
CONFIG = {
    "clients": {"count": CLIENTS, "fragments": CLIENTS},
    "participation": {"rounds": ROUNDS},
    "clipping": RULE | {"quantile_rate": 0.1},
    "budget": {"delta": DELTA},
}
PROVEN = upper_epsilon(((Z, ROUNDS),), 2 / RECORDS, DELTA)
PROVEN_OF_WHOLE_LOTS = gaussian_epsilon(1.5 / math.sqrt(ROUNDS), DELTA)
ATTACKS = ("both", "counts", "thresholds")


def canary_units(size):
    """Return the records of a client: a canary of this size, and no other gradients."""
    sizes = np.zeros(RECORDS, np.float32)
    sizes[0] = size
    coordinates = np.array([0] + [-1] * (RECORDS - 1))
    return Units(coordinates, sizes, np.zeros((RECORDS, 1), np.float32))


def run_experiment(*, lot=2, z=Z, inserted=True):
    """Run once with a canary at each client, and return an experiment by attack.

    2 sigma_b = 1.05 z is just above z, so that the count costs nearly all of it. In a
    lot the canary moves the sum by 1 and the count by -1. The score is the likelihood
    ratio of both, or the least count, as released or as the thresholds show it.
    """
    noise = {"noise": {"multiplier": z}, "clipping": {"count_noise": 0.525 * z}}
    config = make_config(LOTS, CONFIG, noise, {"participation": {"lot": lot}})
    seed = audit_seed(config)
    coins = stream(seed, "audit-coins").integers(2, size=CLIENTS).astype(bool)
    units = [canary_units(size) for size in LARGE * (coins & inserted)]
    source = RecordSource(Coordinates(ordinary=1, reserved=1), units)
    lines = []
    releases = []

    def observe(line, outcomes):
        """Keep each client's release, in units of its sensitivity."""
        last = np.array([float(mean[-1]) for _, mean in outcomes])
        lines.append(line)
        releases.append(last * line.denominator / np.array(line.threshold))

    run_rounds(config.replace(seed=seed), source, observe, rounds=ROUNDS, first=1.0)
    rate = lot / RECORDS
    ratios = np.zeros(CLIENTS)
    for index in range(0, 2 * ROUNDS, 2):
        x, y = releases[index : index + 2]
        z_sum, z_count = (line.noise_multiplier for line in lines[index : index + 2])
        ratio = (2 * x - 1) / (2 * z_sum**2) + (-2 * y - 1) / (2 * z_count**2)
        if rate < 1:
            ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + ratio)
        ratios += ratio
    log_thresholds = np.log([line.threshold for line in lines[::2]])
    counts_from_thresholds = np.diff(log_thresholds, axis=0) / -0.1 * lot / 0.5
    result = CanaryExperiment(
        holders=CLIENTS, coins=coins, scores=ratios, releases=lines
    )
    counts = -np.min(releases[1::2], axis=0)
    thresholds = -np.min(counts_from_thresholds, axis=0)
    return {
        "both": result,
        "counts": dataclasses.replace(result, scores=counts),
        "thresholds": dataclasses.replace(result, scores=thresholds),
    }


@pytest.fixture(scope="module")
def correct():
    return run_experiment()


@pytest.fixture(scope="module")
def family(correct):
    """Return the family of correct code's ledger."""
    return family_of(correct["both"].releases)


def headline(result, family):
    return conftest.headline(result, family, delta=DELTA)


def bound_of_whole_lots():
    """Return the bound of lots of all records at z = 1.5: one Gaussian release."""
    result = run_experiment(lot=RECORDS, z=1.5)["both"]
    sampler = result.releases[0].sampler
    analysis = find("gaussian", sampler["kind"])
    return headline(result, Family(analysis, ((1.5, ROUNDS),), sampler))


def test_record_quantile_is_proven_at_the_configured_noise(correct, family):
    sums, counts = correct["both"].releases[:2]
    assert (sums.name, counts.name) == ("gradient-sum", "below-threshold-count")
    assert counts.noise_multiplier == 4.2
    assert sums.noise_multiplier == pytest.approx((Z**-2 - 4.2**-2) ** -0.5)
    assert sums.noise_multiplier > 13
    assert family.epsilon(1.0, DELTA) == pytest.approx(PROVEN, rel=1e-9)


def test_audit_of_a_record_quantile_is_not_above_what_is_proven(correct, family):
    """Each bound above it has a chance of 5 % at most; the seed is fixed."""
    for attack in ATTACKS:
        assert headline(correct[attack], family) <= PROVEN, attack


def test_audit_of_a_record_quantile_over_whole_lots_is_just_below_what_is_proven():
    assert 0.7 * PROVEN_OF_WHOLE_LOTS < bound_of_whole_lots() <= PROVEN_OF_WHOLE_LOTS


def test_audit_of_a_record_quantile_without_canaries_is_zero(family):
    """200 draws of coins at 95 %: 25 alarms of 5 % have a chance of 1e-5."""
    results = run_experiment(inserted=False)
    assert headline(results["both"], family) == 0
    rng = np.random.default_rng(0)
    for result in results.values():
        alarms = 0
        for coins in rng.integers(2, size=(200, CLIENTS)).astype(bool):
            guesses = guess_surest(result.scores, coins, secret=True)
            bound = one_run_dp(guesses, delta=DELTA, confidence=0.95)
            alarms += bound.epsilon > 0
        assert alarms < 25


def count_without_noise(self, total, standard, noised=PrivateSum._noised):
    return total if self.dimension == 1 else noised(self, total, standard)


def limit_of_gradients(self):
    return math.inf if self.dimension == 1 else self.threshold


def excess_norms(self, state, norms):
    """Return by how much a norm is above C, not an indicator of it."""
    return np.minimum(state["threshold"] - norms, 0).astype(np.float32)[:, None]


def follow_raw_count(self, state, observation):
    """Move the threshold by the count before noise."""
    norms = np.array(observation.raw_norms)
    signs = np.where(norms <= state["threshold"], 0.5, -0.5)
    share = 0.5 + signs[norms > 0].sum() / observation.denominator
    exponent = -self.quantile_rate * (share - self.percentile / 100)
    state["threshold"] *= math.exp(exponent)


NOISE = (PrivateSum, "_noised", count_without_noise)
LIMIT = (PrivateSum, "_limit", property(limit_of_gradients))
VALUES = (PrivateQuantile, "values", excess_norms)
CLAIM = (PrivateQuantile, "private", False)
OBSERVE = (PrivateQuantile, "observe", follow_raw_count)


@pytest.mark.parametrize(
    ("changes", "caught"),
    [
        ([NOISE], {"counts": True, "thresholds": True}),
        ([LIMIT, VALUES], {"counts": True}),
        # The released count has its noise, so the releases alone show no fault.
        ([CLAIM, OBSERVE], {"thresholds": True, "both": False}),
    ],
    ids=["count without noise", "count without clipping", "threshold by raw norms"],
)
def test_audit_catches_a_count_that_is_not_private(
    monkeypatch, family, changes, caught
):
    for change in changes:
        monkeypatch.setattr(*change)
    results = run_experiment()
    leaks = {attack: headline(results[attack], family) > PROVEN for attack in caught}
    assert leaks == caught


def test_audit_catches_a_count_that_is_not_paid_for(monkeypatch):
    """A lot then costs as much as noise of about z / sqrt 2."""
    monkeypatch.setattr(mechanism, "rest_multiplier", lambda total, count: total)
    assert bound_of_whole_lots() > PROVEN_OF_WHOLE_LOTS


@pytest.mark.parametrize("overlay", [{}, DECAY], ids=["fixed", "decaying"])
def test_audit_of_a_run_takes_its_noise_from_both_releases(overlay):
    """The score uses the release of the gradients alone."""
    config = make_config(LOTS, overlay, {"clipping": RULE | {"count_noise": 1.5}})
    multipliers = [2.0] * 5 + [1.8] * 5 if overlay else [1.0] * 10
    result = conftest.experiment(config, seed=99, multipliers=multipliers)
    releases = result.releases
    joint = [
        (sums.noise_multiplier**-2 + counts.noise_multiplier**-2) ** -0.5
        for sums, counts in zip(releases[::2], releases[1::2], strict=True)
    ]
    assert joint == pytest.approx(multipliers, rel=1e-12)
    report = audit(config, releases, canaries=150)
    assert report["rounds"] == 10
    assert report["epsilon"] <= report["epsilon_proven"]
