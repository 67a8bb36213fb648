"""Mechanisms that are wrong in ways that have happened, and what catches each. The
table is in docs/audit.md.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpfedbench.audit.report import bounds_of, family_of
from dpsum import mechanism
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

from .conftest import LOTS, experiment, make_config

COHORT = 40
CONSTANT = {
    "clients": {"count": 2000},
    "participation": {"rounds": 50},
    "clipping": {"kind": "constant"},
}
SECRET = {
    "clients": {"count": 4000},
    "participation": {"cohort": 100, "rounds": 40},
    "clipping": {"kind": "constant"},
}


class Honest(PrivateSum):
    pass


class NoiseOverCohort(PrivateSum):
    def _noised(self, total, standard):
        return total + self.noise_std / COHORT * standard


class HalfNoise(PrivateSum):
    def _noised(self, total, standard):
        return total + self.noise_std / 2 * standard


class SquaredThreshold(PrivateSum):
    """Deviation z C^2: too little below C = 1, too much above."""

    def _noised(self, total, standard):
        deviation = self.noise_multiplier * self.threshold**2
        return total + deviation * standard


class NoClipping(PrivateSum):
    _limit = math.inf


class ByLayer(PrivateSum):
    """Each of two layers is clipped to C by itself; noise is of one layer's
    sensitivity.
    """

    def add(self, contributions):
        half = contributions.shape[1] // 2
        norms = [
            part.norm(dim=1, keepdim=True)
            for part in (contributions[:, :half], contributions[:, half:])
        ]
        parts = (contributions[:, :half], contributions[:, half:])
        clipped = [
            part * (self.threshold / norm.clamp(min=self.threshold))
            for part, norm in zip(parts, norms, strict=True)
        ]
        super().add(torch.cat(clipped, dim=1))

    _limit = math.inf


def audited(config, monkeypatch, mutant):
    """(headline, proved epsilon) of a run whose private sum is the mutant."""
    monkeypatch.setattr(mechanism, "PrivateSum", mutant)
    found = experiment(
        config, canaries=config.clients.count if config.client_data == "tasks" else 300
    )
    family = family_of(found.releases)
    bounds = bounds_of(found, family, delta=1e-6, confidence=0.95, seed=0)
    return bounds[0].epsilon, family.epsilon(1.0, 1e-6)


@pytest.mark.parametrize(
    "mutant", [NoiseOverCohort, HalfNoise, SquaredThreshold, NoClipping]
)
def test_the_audit_catches(monkeypatch, mutant):
    """The bound is above what the ledger says; of the honest sum it is not (chance
    below 5 %, seed fixed).
    """
    found, proved = audited(make_config(CONSTANT), monkeypatch, mutant)
    assert found > proved
    honest, proved = audited(make_config(CONSTANT), monkeypatch, Honest)
    assert 0 < honest < proved


@pytest.mark.parametrize("mutant", [NoiseOverCohort, HalfNoise, NoClipping])
@pytest.mark.parametrize("kind", ["balls-and-bins", "poisson"])
def test_the_audit_catches_under_secret_participation(monkeypatch, mutant, kind):
    config = make_config(SECRET, {"participation": {"kind": kind}})
    found, proved = audited(config, monkeypatch, mutant)
    assert found > proved
    honest, proved = audited(config, monkeypatch, Honest)
    assert honest < proved


def test_the_audit_catches_too_little_noise_of_records(monkeypatch):
    config = make_config(
        LOTS, {"noise": {"multiplier": 1.0}, "participation": {"rounds": 60}}
    )
    found, proved = audited(config, monkeypatch, NoiseOverCohort)
    assert found > proved
    honest, proved = audited(config, monkeypatch, Honest)
    assert honest < proved


def noise(mutant, threshold):
    made = mutant(dimension=100_000, threshold=threshold, noise_multiplier=1.0)
    return made.release(stream(0, "mutant")) / threshold


@pytest.mark.parametrize(
    ("mutant", "threshold"),
    [
        (NoiseOverCohort, 0.5),
        (HalfNoise, 0.5),
        (SquaredThreshold, 0.5),
        (SquaredThreshold, 2.0),
    ],
)
def test_the_noise_is_not_z_times_c(mutant, threshold):
    """Kolmogorov-Smirnov on 1e5 draws, level 1e-6: also where there is too much noise,
    which no audit sees.
    """
    assert stats.kstest(noise(mutant, threshold), "norm").pvalue < 1e-6
    assert stats.kstest(noise(Honest, threshold), "norm").pvalue > 1e-3


def moved(mutant):
    """How far one contribution in a random direction moves the sum, over C."""

    class Silent:
        def standard_normal(self, size):
            return np.zeros(size)

    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(50):
        total = mutant(dimension=8, threshold=0.5, noise_multiplier=1.0)
        total.add(torch.from_numpy((10 * rng.normal(size=(1, 8))).astype(np.float32)))
        worst = max(worst, np.linalg.norm(total.release(Silent())) / 0.5)
    return worst


@pytest.mark.parametrize(
    ("mutant", "least"), [(ByLayer, math.sqrt(2) * 0.999), (NoClipping, 10)]
)
def test_the_sensitivity_is_not_c(mutant, least):
    """A canary of one coordinate lies in one layer, where clipping by layer does what
    it should.
    """
    assert moved(mutant) > least
    assert moved(Honest) <= 1 + 1e-6
