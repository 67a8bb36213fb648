"""Runs in which a client takes part several times: their accounts and audits."""

import numpy as np
import pytest

from dpfedbench.audit.report import bounds_of, family_of
from dploss.gaussian import gaussian_epsilon
from tests.dpfedbench.audit import conftest as audits
from tests.dpfedbench.training.conftest import accounted, ledger_in, make_config, train

ROUNDS = {"cohort": 12, "rounds": 10}
"""48 clients in blocks of 12: two passes and a half."""


def profiles_of(overlay, federation, folder):
    base = {"clipping": {"kind": "constant"}, "noise": {"multiplier": 2.0}}
    config = make_config(base, overlay)
    train(config, federation, folder)
    return accounted(config, folder, federation[1])["profiles"]


@pytest.mark.parametrize("kind", ["shuffled-epochs", "min-separation"])
def test_several_passes_of_known_blocks_are_a_gaussian_a_pass(
    kind, federation, tmp_path
):
    """The paper says nothing of several passes, so the claim is the same."""
    profiles = profiles_of(
        {"participation": {"kind": kind, **ROUNDS}}, federation, tmp_path
    )
    exact = gaussian_epsilon(2.0 / 3**0.5, 1e-3)
    for name in ("claimed", "proven"):
        assert profiles[name]["epsilon_low"] == profiles[name]["epsilon_high"]
        assert profiles[name]["epsilon_high"] == pytest.approx(exact, rel=1e-9)
    replaced = gaussian_epsilon(1.0 / 3**0.5, 1e-3)
    assert profiles["replace_one"]["epsilon_high"] == pytest.approx(replaced, rel=1e-9)
    assert profiles["image_level"]["epsilon_high"] > exact


def test_several_passes_with_correlated_noise_are_one_gaussian_of_z(
    federation, tmp_path
):
    """z covers all three participations: the encoder is divided by how far they move
    it.
    """
    plan = {"kind": "min-separation", **ROUNDS}
    overlay = {"method": "dp-agr-ftrl", "participation": plan}
    proof = profiles_of(overlay, federation, tmp_path)["proven"]
    expected = gaussian_epsilon(2.0, 1e-3)
    assert proof["epsilon_high"] == pytest.approx(expected, rel=1e-9)
    weights = np.zeros((10, 10))
    for index, line in enumerate(ledger_in(tmp_path)):
        weights[index, : index + 1] = line.combines
    encoder = np.linalg.inv(weights)
    participations = ([0, 4, 8], [1, 5, 9], [2, 6], [3, 7])
    moves = [
        np.linalg.norm(encoder[:, rounds].sum(axis=1)) for rounds in participations
    ]
    assert max(moves) == pytest.approx(1.0, rel=1e-6)
    assert np.linalg.norm(encoder, axis=0).max() < 0.7


@pytest.mark.parametrize("kind", ["shuffled-epochs", "min-separation", "fixed-size"])
def test_audit_of_several_passes_is_below_what_is_proven(kind):
    """The rank test at 95 %: of 20 seeds at most 6 are above (probability of more:
    below 1e-4). Some show half of the proven epsilon.
    """
    config = audits.make_config({"participation": {"kind": kind, "rounds": 20}})
    lower_bounds = []
    for seed in range(20):
        experiment = audits.experiment(config, seed=seed)
        family = family_of(experiment.releases)
        bound, *_ = bounds_of(
            experiment, family, delta=1e-6, confidence=0.95, seed=seed
        )
        lower_bounds.append(bound.epsilon)
    epsilon = family.epsilon(1.0, 1e-6)
    assert sum(bound > epsilon for bound in lower_bounds) <= 6
    share = 0.1 if kind == "fixed-size" else 0.4
    assert max(lower_bounds) > share * epsilon
