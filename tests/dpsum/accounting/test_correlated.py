"""Correlated noise in one pass: one Gaussian of the weights in the ledger."""

import dataclasses
import math

import numpy as np
import pytest

from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError
from dpsum.accounting.account import account
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import of
from dpsum.accounting.calibration import calibrate, epsilon_after
from dpsum.accounting.context import AccountContext
from dpsum.accounting.image_level import ImageUse
from dpsum.factorisations import square_root
from tests.dpsum.accounting.helpers import correlated_releases

Z, C, DELTA = 2.0, 0.5, 1e-6
SAMPLER = correlated_releases()[0].sampler


def gaussian(z):
    return pytest.approx(gaussian_epsilon(z, DELTA), rel=1e-9)


def ends_of(releases, profile="proven", **context):
    context_values = AccountContext(**context)
    entry = account(releases, delta=DELTA, claims={}, context=context_values).profiles[
        profile
    ]
    assert entry.status == "proved"
    return entry.epsilon_low, entry.epsilon_high


def test_correlated_one_pass_is_one_gaussian():
    """Calibration finds 2.905, as for one pass in docs/privacy.md."""
    for weights in (None, np.eye(4)):
        assert ends_of(correlated_releases(weights)) == (gaussian(Z), gaussian(Z))
    mechanism = "correlated-gaussian"
    assert calibrate("proven", SAMPLER, 1.5, DELTA, mechanism=mechanism) == 2.905
    epsilon = epsilon_after("proven", SAMPLER, Z, 4, DELTA, mechanism=mechanism)
    assert epsilon == gaussian_epsilon(Z, DELTA)


def test_correlated_one_pass_of_a_stopped_run_has_its_own_encoder():
    """By hand: of one round alone the noise is z times the whole encoder's norm, (1 +
    1/4 + 9/64 + 25/256)^1/2.
    """
    norm = math.sqrt(1 + 1 / 4 + 9 / 64 + 25 / 256)
    assert ends_of(correlated_releases(rounds=1))[1] == gaussian(Z * norm)
    two_rounds = ends_of(correlated_releases(rounds=2))[1]
    assert two_rounds == gaussian(Z * norm / math.sqrt(1.25))


def test_correlated_one_pass_is_the_best_test_of_two_neighbours():
    """The distance of two Gaussians of one covariance, for the worst round."""
    weights = square_root(4)
    covariance = (Z * C) ** 2 * weights @ weights.T
    distance = C * math.sqrt(np.linalg.inv(covariance).diagonal().max())
    assert ends_of(correlated_releases())[1] == gaussian(1 / distance)


@pytest.mark.parametrize(("clients", "square"), [(7, 7.2), (4, 6.4)])
def test_correlated_image_in_several_rounds_by_hand(clients, square):
    """C = [[1, 0], [1/2, 1]] / norm, norm^2 = 5/4: C^T C = [[5/4, 1/2], [1/2, 1]] /
    norm^2. Image 7 is with two clients of round 0 and one of round 1: (4 x 5/4 + 2 x 2
    x 1/2 + 1) / (5/4) = 6.4; image 8 with three of round 1: 9 / (5/4) = 7.2.
    """
    norm = math.sqrt(1.25)
    releases = correlated_releases(np.array([[norm, 0.0], [-norm / 2, norm]]), rounds=2)
    images = np.array([[7], [7], [7], [8], [8], [8], [9]])
    rounds = np.array([0, 0, 1, 1, 1, 1, -1])
    use = ImageUse(images=images[:clients], rounds=rounds[:clients])
    expected = gaussian(Z / math.sqrt(square))
    assert ends_of(releases, "image_level", images=use) == (expected, expected)


def test_correlated_image_of_negative_weights_has_two_ends():
    """Clients who point in opposite ways are further apart: the high end takes them."""
    norm = math.sqrt(1.25)
    releases = correlated_releases(np.array([[norm, 0.0], [norm / 2, norm]]), rounds=2)
    use = ImageUse(images=np.array([[7], [7]]), rounds=np.array([0, 1]))
    low, high = ends_of(releases, "image_level", images=use)
    assert low == gaussian(Z / math.sqrt((5 / 4 + 1 - 1) / (5 / 4)))
    assert high == gaussian(Z / math.sqrt((5 / 4 + 1 + 1) / (5 / 4)))


def test_correlated_image_refuses_z_without_weights():
    use = ImageUse(images=np.array([[7]]), rounds=np.array([0]))
    events = Events.planned(((Z, 4),), SAMPLER)
    with pytest.raises(DpsumError, match="needs the ledger's weights"):
        of(correlated_releases()).image(events, use, DELTA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"combines": None}, "release 3 does not state the weights"),
        ({"combines": [1.0]}, "release 3 does not state the weights"),
        ({"combines": [0.0] * 4}, "release 3 does not state the weights"),
        (
            {"threshold": 0.25, "sensitivity": 0.25, "noise_std": 0.5},
            "release 3 has another threshold or noise than the first",
        ),
        ({"round": 2}, "is of round 2"),
    ],
)
def test_correlated_one_pass_refuses_a_line_of_another_mechanism(change, message):
    releases = correlated_releases()
    releases[3] = dataclasses.replace(releases[3], **change)
    with pytest.raises(DpsumError, match=message):
        ends_of(releases)


def test_correlated_one_pass_refuses_an_encoder_of_a_larger_norm():
    """An observer would be told more than z says."""
    with pytest.raises(DpsumError, match=r"its encoder has a column of norm 1\.2:"):
        ends_of(correlated_releases(square_root(4) / 1.2))
