"""Mechanisms that are wrong in ways that have happened (table in docs/audit.md)."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

from .conftest import LOTS, audit_mutant, make_config

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


class NoiseOverCohort(PrivateSum):
    def _noised(self, total, standard):
        return total + self.noise_std / COHORT * standard


class HalfNoise(PrivateSum):
    def _noised(self, total, standard):
        return total + self.noise_std / 2 * standard


class SquaredThreshold(PrivateSum):
    """Sum with noise of deviation z C^2: too little below C = 1, too much above."""

    def _noised(self, total, standard):
        deviation = self.noise_multiplier * self.threshold**2
        return total + deviation * standard


class NoClipping(PrivateSum):
    _limit = math.inf


class ByLayer(PrivateSum):
    """Each of two layers is clipped to C, with the noise of one."""

    _limit = math.inf

    def add(self, contributions):
        half = contributions.shape[1] // 2
        clipped = []
        for part in (contributions[:, :half], contributions[:, half:]):
            norms = part.norm(dim=1, keepdim=True)
            clipped.append(part * (self.threshold / norms.clamp(min=self.threshold)))
        super().add(torch.cat(clipped, dim=1))


def check_caught(monkeypatch, mutant, config):
    """Check that the bound of the mutant is above what the ledger proves, and that of
    the honest sum is not (chance below 5 %, seed fixed).
    """
    canaries = config.clients.count if config.client_data == "tasks" else 300
    bound, proven = audit_mutant(monkeypatch, mutant, config, canaries=canaries)
    assert bound > proven
    bound, proven = audit_mutant(monkeypatch, PrivateSum, config, canaries=canaries)
    assert bound < proven


@pytest.mark.parametrize(
    "mutant", [NoiseOverCohort, HalfNoise, SquaredThreshold, NoClipping]
)
def test_audit_catches_a_mutant(monkeypatch, mutant):
    check_caught(monkeypatch, mutant, make_config(CONSTANT))


@pytest.mark.parametrize("mutant", [NoiseOverCohort, HalfNoise, NoClipping])
@pytest.mark.parametrize("kind", ["balls-and-bins", "poisson"])
def test_audit_catches_a_mutant_under_secret_participation(monkeypatch, mutant, kind):
    config = make_config(SECRET, {"participation": {"kind": kind}})
    check_caught(monkeypatch, mutant, config)


def test_audit_catches_too_little_noise_of_records(monkeypatch):
    overlay = {"noise": {"multiplier": 1.0}, "participation": {"rounds": 60}}
    check_caught(monkeypatch, NoiseOverCohort, make_config(LOTS, overlay))


def noise_of(cls, threshold):
    total = cls(dimension=100_000, threshold=threshold, noise_multiplier=1.0)
    return total.release(stream(0, "mutant").standard_normal(100_000)) / threshold


@pytest.mark.parametrize(
    ("mutant", "threshold"),
    [
        (NoiseOverCohort, 0.5),
        (HalfNoise, 0.5),
        (SquaredThreshold, 0.5),
        (SquaredThreshold, 2.0),
    ],
)
def test_noise_of_a_mutant_is_not_z_times_c(mutant, threshold):
    """Kolmogorov-Smirnov on 1e5 draws, level 1e-6. It also finds too much noise, which
    no audit sees.
    """
    assert stats.kstest(noise_of(mutant, threshold), "norm").pvalue < 1e-6
    assert stats.kstest(noise_of(PrivateSum, threshold), "norm").pvalue > 1e-3


def largest_move(cls):
    """Return how far one contribution in a random direction moves the sum, over C."""
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(50):
        total = cls(dimension=8, threshold=0.5, noise_multiplier=1.0)
        contribution = (10 * rng.normal(size=(1, 8))).astype(np.float32)
        total.add(torch.from_numpy(contribution))
        largest = max(largest, np.linalg.norm(total.release(np.zeros(8))) / 0.5)
    return largest


@pytest.mark.parametrize(
    ("mutant", "least"), [(ByLayer, math.sqrt(2) * 0.999), (NoClipping, 10)]
)
def test_sensitivity_of_a_mutant_is_not_c(mutant, least):
    """A canary of one coordinate lies in one layer, so no audit sees clipping by layer."""
    assert largest_move(mutant) > least
    assert largest_move(PrivateSum) <= 1 + 1e-6
