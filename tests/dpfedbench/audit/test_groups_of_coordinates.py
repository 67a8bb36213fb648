"""The audit of sums that are clipped by groups: correct code and mutants."""

import numpy as np
import pytest

from dpfedbench.audit.units import EMPTY, Coordinates
from dpsum.group_clipping import GroupedSum

from .conftest import audit_mutant, make_config

CONFIG = {
    "clients": {"count": 2000},
    "participation": {"cohort": 40, "rounds": 50},
    "clipping": {"kind": "constant", "threshold": 0.5, "groups": "tensors"},
}
SECRET = {"participation": {"kind": "balls-and-bins", "cohort": 100, "rounds": 20}}


def audit_sum(monkeypatch, mutant, *overlays):
    config = make_config(CONFIG, *overlays)
    options = {"name": "GroupedSum", "canaries": 1500, "groups": 6}
    return audit_mutant(monkeypatch, mutant, config, **options)


class NoiseOfOneGroup(GroupedSum):
    """Sum with noise z C_g in each group; the ledger has z of all groups together."""

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
def test_audit_of_grouped_sums_is_below_what_is_proven(monkeypatch, noise):
    """The chance of a bound above it is below 5 %; the seed is fixed."""
    overlay = {"clipping": {"noise_by_group": noise}}
    bound, proven = audit_sum(monkeypatch, GroupedSum, overlay)
    assert 0 < bound < proven


@pytest.mark.parametrize(
    "mutant", [NoiseOfOneGroup, OneGroupWithoutNoise, OneGroupNotClipped]
)
def test_audit_refutes_grouped_noise_that_is_not_the_ledgers(monkeypatch, mutant):
    bound, proven = audit_sum(monkeypatch, mutant)
    assert bound > proven


def test_audit_sees_one_group_without_noise_in_secret_rounds(monkeypatch):
    bound, proven = audit_sum(monkeypatch, OneGroupWithoutNoise, SECRET)
    assert bound > proven
    bound, proven = audit_sum(monkeypatch, GroupedSum, SECRET)
    assert bound < proven


def test_spread_puts_a_canary_into_every_group():
    net = Coordinates(ordinary=2, reserved=3, groups=4)
    row = np.array([[3.0, 4.0, 0.0, 7.0, 0.0]], np.float32)
    blocks = net.spread(row).reshape(4, 5 + EMPTY)
    assert net.dimension == 4 * (5 + EMPTY)
    assert (blocks[:, 3] == 7).all()
    assert not blocks[:, 5:].any()
    assert np.linalg.norm(blocks[:, :2]) == pytest.approx(5.0)
    assert net.coordinate_groups("layers", "joint").count == 4
