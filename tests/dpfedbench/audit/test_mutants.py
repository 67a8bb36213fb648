"""Mechanisms that are wrong in ways that have happened (table in docs/audit.md)."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpfedbench.audit.units import EMPTY, Coordinates
from dpsum.group_clipping import GroupedSum
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

from .conftest import (
    LOTS,
    bound_and_proven,
    experiment,
    make_config,
    noise_of_squared_threshold,
    scaled_noise,
)

COHORT = 40
CONSTANT = {
    "clients": {"count": 2000},
    "participation": {"cohort": COHORT, "rounds": 50},
    "clipping": {"kind": "constant"},
}
SECRET = {"clients": {"count": 4000}, "participation": {"cohort": 100, "rounds": 40}}
GROUPED = {"clipping": {"groups": "tensors"}}
MUTANTS = {
    "noise over cohort": ("_noised", scaled_noise(1 / COHORT)),
    "half noise": ("_noised", scaled_noise(1 / 2)),
    "no clipping": ("_limit", math.inf),
    "squared threshold": ("_noised", noise_of_squared_threshold),
}
OF_SECRET = list(MUTANTS)[:3]
QUIET_LOTS = {"noise": {"multiplier": 1.0}, "participation": {"rounds": 60}}


@pytest.mark.parametrize(
    ("overlays", "mutants"),
    [
        ([CONSTANT], list(MUTANTS)),
        ([CONSTANT, SECRET, {"participation": {"kind": "balls-and-bins"}}], OF_SECRET),
        ([CONSTANT, SECRET, {"participation": {"kind": "poisson"}}], OF_SECRET),
        ([LOTS, QUIET_LOTS], ["noise over cohort"]),
    ],
    ids=["one-pass", "balls-and-bins", "poisson", "lots"],
)
def test_audit_catches_a_mutant(monkeypatch, overlays, mutants):
    """The correct sum's bound is above with chance below 5 %; the seed is fixed."""
    config = make_config(*overlays)
    canaries = config.clients.count if config.client_data == "tasks" else 300
    bound, proven = bound_and_proven(experiment(config, canaries=canaries))
    assert bound < proven
    for mutant in mutants:
        with monkeypatch.context() as patch:
            patch.setattr(PrivateSum, *MUTANTS[mutant])
            bound, proven = bound_and_proven(experiment(config, canaries=canaries))
        assert bound > proven, mutant


def noise_of(threshold):
    total = PrivateSum(dimension=100_000, threshold=threshold, noise_multiplier=1.0)
    return total.release(stream(0, "mutant").standard_normal(100_000)) / threshold


@pytest.mark.parametrize(
    ("mutant", "threshold"),
    [
        ("noise over cohort", 0.5),
        ("half noise", 0.5),
        ("squared threshold", 0.5),
        ("squared threshold", 2.0),
    ],
)
def test_noise_of_a_mutant_is_not_z_times_c(monkeypatch, mutant, threshold):
    """Kolmogorov-Smirnov, level 1e-6. It sees too much noise, which no audit sees."""
    assert stats.kstest(noise_of(threshold), "norm").pvalue > 1e-3
    monkeypatch.setattr(PrivateSum, *MUTANTS[mutant])
    assert stats.kstest(noise_of(threshold), "norm").pvalue < 1e-6


def largest_move():
    """Return how far one contribution in a random direction moves the sum, over C."""
    rng = np.random.default_rng(0)
    moves = []
    for _ in range(50):
        total = PrivateSum(dimension=8, threshold=0.5, noise_multiplier=1.0)
        total.add(torch.from_numpy(10 * rng.normal(size=(1, 8))))
        moves.append(np.linalg.norm(total.release(np.zeros(8))) / 0.5)
    return max(moves)


def add_by_layer(self, contributions):
    """Clip each of two layers to C, with the noise of one."""
    layers = contributions.reshape(len(contributions), 2, -1)
    norms = layers.norm(dim=2, keepdim=True)
    clipped = layers * (self.threshold / norms.clamp(min=self.threshold))
    self._total += clipped.flatten(1).sum(0).numpy()


@pytest.mark.parametrize(
    ("mutant", "least"),
    [(("add", add_by_layer), math.sqrt(2) * 0.999), (MUTANTS["no clipping"], 10)],
    ids=["by layer", "no clipping"],
)
def test_sensitivity_of_a_mutant_is_not_c(monkeypatch, mutant, least):
    """A canary of one coordinate lies in one layer, so no audit sees clipping by layer."""
    assert largest_move() <= 1 + 1e-6
    monkeypatch.setattr(PrivateSum, *mutant)
    assert largest_move() > least


# Sums that are clipped by groups


def run_grouped(*overlays):
    config = make_config(CONSTANT, GROUPED, *overlays)
    return bound_and_proven(experiment(config, canaries=1500, groups=6))


def deviations_of_single_groups(self):
    """Return z C_g in each group; the ledger has z of all groups together."""
    stds = self.noise_multiplier * np.array(self.thresholds)
    return np.repeat(stds, np.diff(self.groups.boundaries))


def deviations_without_one_group(self, correct=GroupedSum.deviations.fget):
    deviations = correct(self)
    deviations[self.groups.slices[2]] = 0.0
    return deviations


def limits_without_one_group(self):
    return (*self.thresholds[:-1], 1e9)


SECRET_ROUNDS = {"kind": "balls-and-bins", "cohort": 100, "rounds": 20}


@pytest.mark.parametrize(
    "overlay",
    [
        {"clipping": {"noise_by_group": "joint"}},
        {"clipping": {"noise_by_group": "per-group"}},
        {"clipping": {"noise_by_group": "equal-shares"}},
        {"participation": SECRET_ROUNDS},
    ],
    ids=str,
)
def test_audit_of_grouped_sums_is_below_what_is_proven(overlay):
    """The chance of a bound above it is below 5 %; the seed is fixed."""
    bound, proven = run_grouped(overlay)
    assert 0 < bound < proven


@pytest.mark.parametrize(
    ("member", "mutant", "overlay"),
    [
        ("deviations", deviations_of_single_groups, {}),
        ("deviations", deviations_without_one_group, {}),
        ("deviations", deviations_without_one_group, {"participation": SECRET_ROUNDS}),
        ("_limit", limits_without_one_group, {}),
    ],
)
def test_audit_refutes_grouped_noise_that_is_not_the_ledgers(
    monkeypatch, member, mutant, overlay
):
    monkeypatch.setattr(GroupedSum, member, property(mutant))
    bound, proven = run_grouped(overlay)
    assert bound > proven


def test_spread_puts_a_canary_into_every_group():
    net = Coordinates(ordinary=2, reserved=3, groups=4)
    row = np.array([[3.0, 4.0, 0.0, 7.0, 0.0]], np.float32)
    blocks = net.spread(row).reshape(4, 5 + EMPTY)
    assert (blocks[:, 3] == 7).all()
    assert not blocks[:, 5:].any()
    assert np.linalg.norm(blocks[:, :2]) == pytest.approx(5.0)
    assert net.coordinate_groups("layers", "joint").count == 4
