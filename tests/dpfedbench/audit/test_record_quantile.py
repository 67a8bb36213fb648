"""Audits of the private quantile of records, on both of its releases, and mutants.

Each of many clients holds a few records. By a coin the gradient of one is far above any
threshold, or zero; the others have none. So each client is an experiment on the two
neighbours that are told apart best. Its score is a statistic of the server's view: the
likelihood ratio of sums and counts, or of counts alone, or of the counts that follow
from the thresholds.
"""

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
CONFIG = {
    **LOTS,
    "clients": {"count": CLIENTS, "partition": "fragments", "fragments": CLIENTS},
    "participation": {"kind": "poisson-lots", "rounds": ROUNDS},
    "clipping": {
        "kind": "private-quantile",
        "threshold": 1.0,
        "percentile": 50,
        "quantile_rate": 0.1,
        "never_rising": False,
    },
    "budget": {"delta": DELTA},
}
ATTACKS = ("both", "counts", "thresholds")


class View:
    """Observer that keeps, by the name of the sum, each client's release in units of
    its sensitivity, the thresholds, and z.
    """

    def __init__(self):
        self.lines = []
        self.by_name = {}

    def __call__(self, line, outcomes):
        self.lines.append(line)
        last = np.array([float(mean[-1]) for _, mean in outcomes])
        values = last * line.denominator / line.threshold
        release = values, np.array(line.threshold), line.noise_multiplier
        self.by_name.setdefault(line.name, []).append(release)


def canary_units(size):
    """Return the records of a client: a canary of this size, and no other gradients."""
    coordinates = np.full(RECORDS, -1)
    coordinates[0] = 0
    sizes = np.zeros(RECORDS, np.float32)
    sizes[0] = size
    return Units(coordinates, sizes, np.zeros((RECORDS, 1), np.float32))


def run_experiment(*, lot=2, z=Z, inserted=True):
    """Run once with a canary at each client, and return an experiment by attack.

    2 sigma_b = 1.05 z is just above z, so that the count costs nearly all of it. In a
    lot the canary moves the sum by 1 and the count by -1.
    """
    noise = {"noise": {"multiplier": z}, "clipping": {"count_noise": 0.525 * z}}
    config = make_config(CONFIG, noise, {"participation": {"cohort": lot}})
    seed = audit_seed(config)
    coins = stream(seed, "audit-coins").integers(2, size=CLIENTS).astype(bool)
    view = View()
    units = [canary_units(size) for size in LARGE * (coins & inserted)]
    source = RecordSource(Coordinates(ordinary=1, reserved=1), units)
    run_rounds(config.replace(seed=seed), source, view, rounds=ROUNDS, first=1.0)
    sums = view.by_name["gradient-sum"]
    counts = view.by_name["below-threshold-count"]
    rate = lot / RECORDS
    ratios = np.zeros(CLIENTS)
    for (x, _, z_sum), (y, _, z_count) in zip(sums, counts, strict=True):
        ratio = (2 * x - 1) / (2 * z_sum**2) + (-2 * y - 1) / (2 * z_count**2)
        if rate < 1:
            ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + ratio)
        ratios += ratio
    log_thresholds = np.log([threshold for _, threshold, _ in sums])
    counts_from_thresholds = np.diff(log_thresholds, axis=0) / -0.1 * lot / 0.5
    scores = {
        "both": ratios,
        "counts": -np.min([y for y, _, _ in counts], axis=0),
        "thresholds": -np.min(counts_from_thresholds, axis=0),
    }
    return {
        name: CanaryExperiment(
            holders=CLIENTS, coins=coins, scores=values, releases=view.lines
        )
        for name, values in scores.items()
    }


@pytest.fixture(scope="module")
def honest():
    return run_experiment()


@pytest.fixture(scope="module")
def family(honest):
    """Return the family of correct code's ledger."""
    return family_of(honest["both"].releases)


@pytest.fixture(scope="module")
def proven(family):
    return family.epsilon(1.0, DELTA)


def headline(result, family):
    return conftest.headline(result, family, delta=DELTA)


def bound_of_whole_lots():
    """Return the bound of lots of all records at z = 1.5: one Gaussian release."""
    result = run_experiment(lot=RECORDS, z=1.5)["both"]
    sampler = result.releases[0].sampler
    analysis = find("gaussian", sampler["kind"])
    return headline(result, Family(analysis, ((1.5, ROUNDS),), sampler))


PROVEN_OF_WHOLE_LOTS = gaussian_epsilon(1.5 / math.sqrt(ROUNDS), DELTA)


def test_record_quantile_is_proven_at_the_configured_noise(honest, proven):
    sums, counts = honest["both"].releases[:2]
    assert sums.name == "gradient-sum"
    assert counts.name == "below-threshold-count"
    assert counts.noise_multiplier == 4.2
    assert sums.noise_multiplier == pytest.approx((Z**-2 - 4.2**-2) ** -0.5)
    assert sums.noise_multiplier > 13
    expected = upper_epsilon(((Z, ROUNDS),), 2 / RECORDS, DELTA)
    assert proven == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("attack", ATTACKS)
def test_audit_of_a_record_quantile_is_not_above_what_is_proven(
    honest, family, proven, attack
):
    """A bound above it has a chance of 5 % at most; the seed is fixed."""
    assert headline(honest[attack], family) <= proven


def test_audit_of_a_record_quantile_over_whole_lots_is_just_below_what_is_proven():
    assert 0.7 * PROVEN_OF_WHOLE_LOTS < bound_of_whole_lots() <= PROVEN_OF_WHOLE_LOTS


def test_audit_of_a_record_quantile_without_canaries_is_zero(family):
    """At least 95 % of 200 draws of coins give zero; 25 alarms of 5 % have a chance of
    1e-5.
    """
    results = run_experiment(inserted=False)
    assert headline(results["both"], family) == 0
    rng = np.random.default_rng(0)
    for name in ATTACKS:
        alarms = 0
        for coins in rng.integers(2, size=(200, CLIENTS)).astype(bool):
            guesses = guess_surest(results[name].scores, coins, secret=True)
            bound = one_run_dp(guesses, delta=DELTA, confidence=0.95)
            alarms += bound.epsilon > 0
        assert alarms < 25


class CountWithoutNoise(PrivateSum):
    def _noised(self, total, standard):
        return total if self.dimension == 1 else super()._noised(total, standard)


class CountWithoutClipping(PrivateSum):
    @property
    def _limit(self):
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


def test_audit_catches_a_count_without_noise(monkeypatch, family, proven):
    monkeypatch.setattr(mechanism, "PrivateSum", CountWithoutNoise)
    results = run_experiment()
    assert headline(results["counts"], family) > proven
    assert headline(results["thresholds"], family) > proven


def test_audit_catches_a_count_that_is_not_paid_for(monkeypatch):
    """A lot then costs as much as noise of about z / sqrt 2."""
    monkeypatch.setattr(mechanism, "rest_multiplier", lambda total, count: total)
    assert bound_of_whole_lots() > PROVEN_OF_WHOLE_LOTS


def test_audit_catches_a_threshold_that_moves_by_raw_norms(monkeypatch, family, proven):
    """The released count has its noise, so the releases alone show no fault."""
    monkeypatch.setattr(PrivateQuantile, "private", False)
    monkeypatch.setattr(PrivateQuantile, "observe", follow_raw_count)
    results = run_experiment()
    assert headline(results["thresholds"], family) > proven
    assert headline(results["both"], family) <= proven


def test_audit_catches_a_count_without_clipping(monkeypatch, family, proven):
    monkeypatch.setattr(mechanism, "PrivateSum", CountWithoutClipping)
    monkeypatch.setattr(PrivateQuantile, "values", excess_norms)
    assert headline(run_experiment()["counts"], family) > proven


@pytest.mark.parametrize("overlay", [{}, DECAY], ids=["fixed", "decaying"])
def test_audit_of_a_run_takes_its_noise_from_both_releases(overlay):
    """The score uses the release of the gradients alone."""
    rule = {"clipping": CONFIG["clipping"] | {"count_noise": 1.5}}
    config = make_config(LOTS, overlay, rule)
    multipliers = [2.0] * 5 + [1.8] * 5 if overlay else []
    result = conftest.experiment(config, seed=99, multipliers=multipliers)
    releases = result.releases
    joint = [
        (sums.noise_multiplier**-2 + counts.noise_multiplier**-2) ** -0.5
        for sums, counts in zip(releases[::2], releases[1::2], strict=True)
    ]
    assert joint == pytest.approx(multipliers or [1.0] * 10, rel=1e-12)
    report = audit(config, releases, canaries=150)
    assert report["rounds"] == 10
    assert report["epsilon"] <= report["epsilon_proven"]
