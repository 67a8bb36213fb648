"""The audit of sums that are clipped by groups: right code stands, and noise that is not
what the ledger states is found.
"""

import numpy as np
import pytest

from dpfedbench.audit.report import bounds_of, family_of
from dpfedbench.audit.units import EMPTY, Coordinates
from dpsum import mechanism
from dpsum.group_clipping import GroupedSum

from .conftest import experiment, make_config

GROUPS = 6
CONFIG = {
    "clients": {"count": 2000},
    "participation": {"cohort": 40, "rounds": 50},
    "clipping": {"kind": "constant", "threshold": 0.5, "groups": "tensors"},
}


def audited(monkeypatch, mutant, *overlays):
    """(headline, proved epsilon) of a run whose grouped sum is the mutant."""
    monkeypatch.setattr(mechanism, "GroupedSum", mutant)
    config = make_config(CONFIG, *overlays)
    found = experiment(config, canaries=1500, groups=GROUPS)
    family = family_of(found.releases)
    bounds = bounds_of(found, family, delta=1e-6, confidence=0.95, seed=0)
    return bounds[0].epsilon, family.epsilon(1.0, 1e-6)


class Honest(GroupedSum):
    pass


class NoiseOfOneGroup(GroupedSum):
    """Noise z C_g in each group, while the ledger says z of all groups together."""

    @property
    def deviations(self):
        stds = self.noise_multiplier * np.array(self.thresholds)
        return np.repeat(stds, np.diff(self.groups.boundaries))


class OneGroupWithoutNoise(GroupedSum):
    @property
    def deviations(self):
        deviations = super().deviations
        deviations[self.groups.slices[2]] = 0.0
        return deviations


class OneGroupNotClipped(GroupedSum):
    @property
    def _limit(self):
        return (*self.thresholds[:-1], 1e9)


@pytest.mark.parametrize("noise", ["joint", "per-group", "equal-shares"])
def test_audit_of_right_code_stays_below_the_proof(monkeypatch, noise):
    # Chance below 5 %, seed fixed.
    found, proved = audited(
        monkeypatch, Honest, {"clipping": {"noise_by_group": noise}}
    )
    assert 0 < found < proved


@pytest.mark.parametrize(
    "mutant", [NoiseOfOneGroup, OneGroupWithoutNoise, OneGroupNotClipped]
)
def test_audit_refutes_noise_that_is_not_the_ledgers(monkeypatch, mutant):
    found, proved = audited(monkeypatch, mutant)
    assert found > proved


def test_audit_sees_one_group_without_noise_under_secret_participation(monkeypatch):
    secret = {
        "clients": {"count": 2000},
        "participation": {"kind": "balls-and-bins", "cohort": 100, "rounds": 20},
    }
    found, proved = audited(monkeypatch, OneGroupWithoutNoise, secret)
    assert found > proved
    found, proved = audited(monkeypatch, Honest, secret)
    assert found < proved


def test_spread_puts_a_canary_into_every_group():
    net = Coordinates(ordinary=2, reserved=3, groups=4)
    row = np.array([[3.0, 4.0, 0.0, 7.0, 0.0]], np.float32)
    blocks = net.spread(row).reshape(4, 5 + EMPTY)
    assert net.dimension == 4 * (5 + EMPTY)
    assert (blocks[:, 3] == 7).all() and not blocks[:, 5:].any()
    assert np.linalg.norm(blocks[:, :2]) == pytest.approx(5.0)
    assert net.coordinate_groups("layers", "joint").count == 4
