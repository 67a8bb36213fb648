"""Audits of the private quantile of records, on both of its releases, and of mechanisms
of it that are wrong.

Each of many clients holds a few records. By a coin the gradient of one is far above any
threshold, or zero; the others have none. So each client is an experiment of its own on
the two neighbours that are told apart best, and its score is what the server makes of
what it saw: the likelihood ratio of sums and counts, or of counts alone, or of the
counts that the thresholds tell.
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
from dpfedbench.audit.report import audit, bounds_of, family_of
from dpfedbench.audit.units import LARGE, Units
from dpsum import mechanism
from dpsum.accounting.analyses import find
from dpsum.accounting.analyses.poisson import upper_epsilon
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.audit.bounds import guess_surest, one_run_dp
from dpsum.audit.ranks import Family
from dpsum.clipping import PrivateQuantile
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

from .conftest import LOTS, make_config
from .conftest import experiment as canaries
from .test_report import DECAY

CLIENTS, RECORDS, ROUNDS, DELTA, Z = 600, 6, 6, 1e-3, 4.0
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


class Seen:
    """Of each release, what left each client in units of its sensitivity, the
    thresholds, and z.
    """

    def __init__(self):
        self.lines, self.named = [], {}

    def __call__(self, line, made):
        self.lines.append(line)
        values = (
            np.array([float(mean[-1]) for _, mean in made])
            * line.denominator
            / line.threshold
        )
        self.named.setdefault(line.name, []).append(
            (values, np.array(line.threshold), line.noise_multiplier)
        )


def experiment(*, lot=2, z=Z, inserted=True):
    """What an observer makes of one run: by attack, an experiment with a canary at each
    client.
    """
    # 2 sigma_b = 1.05 z is just above z, so that the count costs nearly all of it.
    noise = {"noise": {"multiplier": z}, "clipping": {"count_noise": 0.525 * z}}
    config = make_config(CONFIG, noise, {"participation": {"cohort": lot}})
    seed, net, seen = audit_seed(config), Coordinates(ordinary=1, reserved=1), Seen()
    coins = stream(seed, "audit-coins").integers(2, size=CLIENTS).astype(bool)
    others = [0] * (RECORDS - 1)
    units = [
        Units(
            np.array([0, *[-1] * (RECORDS - 1)]),
            np.float32([size, *others]),
            np.zeros((RECORDS, 1), np.float32),
        )
        for size in LARGE * (coins & inserted)
    ]
    run_rounds(
        config.replace(seed=seed),
        RecordSource(net, units),
        seen,
        rounds=ROUNDS,
        first=1.0,
    )
    rate, both = lot / RECORDS, np.zeros(CLIENTS)
    sums, counts = seen.named["gradient-sum"], seen.named["below-threshold-count"]
    # In a lot the canary moves the sum by 1 and the count by -1.
    for (x, _, z), (y, _, z_count) in zip(sums, counts, strict=True):
        ratio = (2 * x - 1) / (2 * z**2) + (-2 * y - 1) / (2 * z_count**2)
        both += (
            ratio if rate == 1 else np.logaddexp(np.log1p(-rate), np.log(rate) + ratio)
        )
    told = (
        np.diff(np.log([threshold for _, threshold, _ in sums]), axis=0)
        / -0.1
        * lot
        / 0.5
    )
    scores = {
        "both": both,
        "counts": -np.min([y for y, _, _ in counts], axis=0),
        "thresholds": -np.min(told, axis=0),
    }
    return {
        name: CanaryExperiment(
            holders=CLIENTS, coins=coins, scores=each, releases=seen.lines
        )
        for name, each in scores.items()
    }


@pytest.fixture(scope="module")
def honest():
    return experiment()


@pytest.fixture(scope="module")
def family(honest):
    """Of the ledger of the code as it is: a leak of 1 is what the configured noise
    costs.
    """
    return family_of(honest["both"].releases)


def headline(found, family):
    return bounds_of(found, family, delta=DELTA, confidence=0.95, seed=0)[0].epsilon


def whole_lots():
    """The bound of lots of all records at z = 1.5, where all rounds together are one
    Gaussian release.
    """
    found = experiment(lot=RECORDS, z=1.5)["both"]
    sampler = found.releases[0].sampler
    return headline(
        found, Family(find("gaussian", sampler["kind"]), ((1.5, ROUNDS),), sampler)
    )


def test_what_holds_is_that_of_the_configured_noise(honest, family):
    sums, counts = honest["both"].releases[:2]
    assert (sums.name, counts.name, counts.noise_multiplier) == (
        "gradient-sum",
        "below-threshold-count",
        4.2,
    )
    assert (
        sums.noise_multiplier == pytest.approx((Z**-2 - 4.2**-2) ** -0.5)
        and sums.noise_multiplier > 13
    )
    assert family.epsilon(1.0, DELTA) == pytest.approx(
        upper_epsilon(((Z, ROUNDS),), 2 / RECORDS, DELTA), rel=1e-9
    )


@pytest.mark.parametrize("attack", ATTACKS)
def test_on_right_code_the_bound_is_not_above_what_holds(honest, family, attack):
    """A bound above it has a chance of 5 % at most; the seed is fixed."""
    assert headline(honest[attack], family) <= family.epsilon(1.0, DELTA)


def test_on_right_code_the_bound_of_whole_lots_is_just_below_what_holds():
    holds = gaussian_epsilon(1.5 / math.sqrt(ROUNDS), DELTA)
    assert 0.7 * holds < whole_lots() <= holds


def test_with_no_record_inserted_the_bound_is_zero(family):
    """And of 200 draws of coins that say nothing in 95 % at least; 25 alarms of 5 %
    have a chance of 1e-5.
    """
    found, rng = experiment(inserted=False), np.random.default_rng(0)
    assert headline(found["both"], family) == 0
    for name in ATTACKS:
        coins = rng.integers(2, size=(200, CLIENTS)).astype(bool)
        guesses = [guess_surest(found[name].scores, row, secret=True) for row in coins]
        assert (
            sum(
                one_run_dp(each, delta=DELTA, confidence=0.95).epsilon > 0
                for each in guesses
            )
            < 25
        )


class CountWithoutNoise(PrivateSum):
    def _noised(self, total, standard):
        return total if self.dimension == 1 else super()._noised(total, standard)


class CountOfNorms(PrivateSum):
    """The count's contributions are not clipped; see `of_norms`."""

    @property
    def _limit(self):
        return math.inf if self.dimension == 1 else self.threshold


def of_norms(self, state, norms):
    """In place of an indicator, by how much a norm is above C."""
    return np.minimum(state["threshold"] - norms, 0).astype(np.float32)[:, None]


def by_raw_count(self, state, seen):
    """In place of the released count, the count as it was before noise."""
    signs = np.where(np.array(seen.raw_norms) <= state["threshold"], 0.5, -0.5)
    share = 0.5 + signs[np.array(seen.raw_norms) > 0].sum() / seen.denominator
    state["threshold"] *= math.exp(
        -self.quantile_rate * (share - self.percentile / 100)
    )


def test_the_audit_catches_a_count_that_is_not_noised(monkeypatch, family):
    monkeypatch.setattr(mechanism, "PrivateSum", CountWithoutNoise)
    found = experiment()
    assert headline(found["counts"], family) > family.epsilon(1.0, DELTA)
    assert headline(found["thresholds"], family) > family.epsilon(1.0, DELTA)


def test_the_audit_catches_a_count_that_nothing_is_paid_for(monkeypatch):
    """The sum's noise is not raised: a lot costs what noise of about z / sqrt 2
    does.
    """
    monkeypatch.setattr(mechanism, "rest_multiplier", lambda total, other: total)
    assert whole_lots() > gaussian_epsilon(1.5 / math.sqrt(ROUNDS), DELTA)


def test_the_audit_catches_a_threshold_that_moves_by_raw_norms(monkeypatch, family):
    """The released count is noised as it should be, so that whoever looks at the
    releases alone sees nothing wrong.
    """
    monkeypatch.setattr(PrivateQuantile, "private", False)
    monkeypatch.setattr(PrivateQuantile, "observe", by_raw_count)
    found = experiment()
    assert headline(found["thresholds"], family) > family.epsilon(1.0, DELTA)
    assert headline(found["both"], family) <= family.epsilon(1.0, DELTA)


def test_the_audit_catches_a_count_whose_contributions_are_not_clipped(
    monkeypatch, family
):
    monkeypatch.setattr(mechanism, "PrivateSum", CountOfNorms)
    monkeypatch.setattr(PrivateQuantile, "values", of_norms)
    assert headline(experiment()["counts"], family) > family.epsilon(1.0, DELTA)


@pytest.mark.parametrize("overlay", [{}, DECAY], ids=["fixed", "decaying"])
def test_a_runs_own_audit_takes_its_noise_from_both_releases(overlay):
    """With canaries the gradients' release alone is scored. Noise that followed a loss
    is found in the ledger again.
    """
    config = make_config(
        LOTS, overlay, {"clipping": CONFIG["clipping"] | {"count_noise": 1.5}}
    )
    z = [2.0] * 5 + [1.8] * 5 if overlay else []
    releases = canaries(config, seed=99, multipliers=z).releases
    charged = [
        (a.noise_multiplier**-2 + b.noise_multiplier**-2) ** -0.5
        for a, b in zip(releases[::2], releases[1::2], strict=True)
    ]
    assert charged == pytest.approx(z or [1.0] * 10, rel=1e-12)
    found = audit(config, releases, canaries=150)
    assert found["rounds"] == 10 and found["epsilon"] <= found["epsilon_proven"]
