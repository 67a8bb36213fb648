"""Correlated noise in secret rounds without draws, and of ledgers: quadrature,
balls-and-bins and a simulation.
"""

import math

import numpy as np
import pytest

import dpsum
from dploss import importance_sampling
from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError, factorisations
from dpsum.accounting import analyses
from dpsum.accounting.account import account
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import balls_and_bins
from dpsum.accounting.analyses import correlated_balls_and_bins as correlated_bins
from dpsum.accounting.image_level import ImageUse
from tests.dpsum.accounting.helpers import (
    COHORTS,
    banded_square_root,
    correlated_releases,
    positive_root,
)
from tests.dpsum.helpers import make_mechanism, release_rounds

DELTA = 1e-4
Z = 2.0
SAMPLER = {"kind": "balls-and-bins", **COHORTS}


def unit_encoder(rounds, bands):
    """Return the banded square root, scaled to a largest column of norm 1."""
    encoder = banded_square_root(rounds, bands)
    return encoder / np.linalg.norm(encoder, axis=0).max()


def grid_of_releases(rounds, z):
    """Return points [rounds, points] and the chance of each without the unit."""
    line = np.linspace(-8.5 - 3 / z, 8.5 + 3 / z, {2: 1201, 3: 141}[rounds])
    points = np.stack(np.meshgrid(*[line] * rounds, indexing="ij")).reshape(rounds, -1)
    cell = ((line[1] - line[0]) / math.sqrt(2 * math.pi)) ** rounds
    return points, np.exp(-(points**2).sum(axis=0) / 2) * cell


def likelihood_ratio(encoder, z, points, contributions=None):
    """Return dP/dQ at each point; contributions [rounds, points] are 1 by default."""
    if contributions is None:
        contributions = np.ones_like(points)
    ratio = np.zeros(points.shape[1])
    for index, contribution in enumerate(contributions):
        column = encoder[:, index] / z
        square = (column @ column) * contribution**2
        ratio += np.exp(contribution * (column @ points) - square / 2) / len(encoder)
    return ratio


def exact_epsilon(ratio, chances, delta):
    """Return the larger epsilon of both directions by summation over the grid."""

    def present(epsilon):
        return float(chances @ np.maximum(ratio - math.exp(epsilon), 0.0)) - delta

    def absent(epsilon):
        return float(chances @ np.maximum(1 - math.exp(epsilon) * ratio, 0.0)) - delta

    return max(positive_root(present), positive_root(absent))


def bracket(encoder, z, done=None, delta=DELTA):
    rounds = len(encoder)
    done = done or rounds
    scaled = encoder[:done, :done] / z
    overlaps = correlated_bins.overlaps(np.abs(scaled).T @ np.abs(scaled))
    high = correlated_bins.upper_epsilon(overlaps, rounds, done, delta)
    return correlated_bins.lower_epsilon(scaled.T @ scaled, rounds, delta), high


@pytest.mark.parametrize("z", [0.7, 1.5, 4.0])
@pytest.mark.parametrize(("rounds", "bands"), [(2, 1), (2, 2), (3, 2), (3, 3)])
def test_correlated_bins_of_two_and_three_rounds_are_a_quadrature(rounds, bands, z):
    """An account that ignores correlation would be below the truth."""
    encoder = unit_encoder(rounds, bands)
    encoder /= np.linalg.norm(encoder, axis=0)
    points, chances = grid_of_releases(rounds, z)
    assert chances.sum() == pytest.approx(1.0, abs=1e-9)
    low, high = bracket(encoder, z)
    exact = exact_epsilon(likelihood_ratio(encoder, z, points), chances, DELTA)
    assert low <= exact + 2e-4
    assert exact - 2e-4 <= high <= gaussian_epsilon(z, DELTA) + 1e-9
    if bands == 1:
        assert (low, high) == pytest.approx((exact, exact), abs=2e-3)
    else:
        assert bracket(unit_encoder(rounds, 1), z)[1] < exact


@pytest.mark.parametrize(
    "second_contribution",
    [
        np.sign,
        lambda first: np.where(first > 0.5, 1.0, 0.0),
        lambda first: np.where(first > 1.0, -1.0, 1.0),
        np.tanh,
    ],
)
def test_correlated_bins_cover_contributions_that_follow_releases(second_contribution):
    """Two rounds; sign and size of the second contribution follow the first release."""
    encoder = unit_encoder(2, 2)
    points, chances = grid_of_releases(2, 1.0)
    unit_contributions = np.ones(points.shape[1])
    most = exact_epsilon(likelihood_ratio(encoder, 1.0, points), chances, DELTA)
    contributions = np.stack([unit_contributions, second_contribution(points[0])])
    ratio = likelihood_ratio(encoder, 1.0, points, contributions)
    assert exact_epsilon(ratio, chances, DELTA) < most - 1e-3


def test_correlated_bins_of_negative_weights_are_taken_by_size():
    """Contributions of opposite signs make it the encoder of the sizes: the high end
    holds, the low end is 0.
    """
    encoder = np.array([[1.0, 0.0], [-0.6, 1.0]]) / math.sqrt(1.36)
    points, chances = grid_of_releases(2, 1.0)
    low, high = bracket(encoder, 1.0)
    assert low == 0.0
    for signs in ((1.0, 1.0), (1.0, -1.0)):
        contributions = np.outer(signs, np.ones(points.shape[1]))
        ratio = likelihood_ratio(encoder, 1.0, points, contributions)
        assert exact_epsilon(ratio, chances, DELTA) <= high
    assert high == pytest.approx(bracket(np.abs(encoder), 1.0)[1], rel=1e-12)


def test_correlated_bins_without_correlation_are_balls_and_bins():
    low, high = bracket(np.eye(40), 1.0, delta=1e-6)
    assert high == balls_and_bins.upper_epsilon(1.0, 40, 40, 1e-6)
    assert low == balls_and_bins.lower_epsilon(1.0, 40, 40, 1e-6)


def test_correlated_bins_of_a_stopped_run_are_one_sampled_gaussian():
    """One of two rounds: the unit was in it with a chance of a half."""
    encoder = unit_encoder(2, 2)
    line = np.linspace(-12, 14, 400_001)
    chances = np.exp(-(line**2) / 2) * (line[1] - line[0]) / math.sqrt(2 * math.pi)
    norm = encoder[0, 0]
    ratio = 0.5 + 0.5 * np.exp(norm * line - norm**2 / 2)
    exact = exact_epsilon(ratio, chances, DELTA)
    low, high = bracket(encoder, 1.0, done=1)
    assert low <= exact + 1e-5
    assert exact - 1e-5 <= high <= exact + 2e-3


def releases_of(bands=2, **changes):
    """Return lines of four rounds with banded noise, z = 2."""
    weights = np.linalg.inv(unit_encoder(4, bands))
    return correlated_releases(weights, sampler=SAMPLER, **changes)


def profiles_of(releases):
    return account(releases, delta=DELTA, claims={}).profiles


def test_account_of_correlated_bins_is_the_narrow_bracket():
    encoder = unit_encoder(4, 2)
    profiles = profiles_of(releases_of())
    proven = profiles["proven"]
    assert proven.status == "proved"
    expected = importance_sampling.bracket(encoder / Z, 4, DELTA)
    ends = proven.epsilon_low, proven.epsilon_high
    assert ends == pytest.approx(expected, rel=1e-9)
    low, high = bracket(encoder, Z)
    assert low < proven.epsilon_low < proven.epsilon_high < high
    assert profiles["replace_one"].epsilon_high > proven.epsilon_high
    stopped = profiles_of(releases_of(rounds=3))["proven"]
    expected = importance_sampling.bracket(encoder[:3, :3] / Z, 4, DELTA)
    ends = stopped.epsilon_low, stopped.epsilon_high
    assert ends == pytest.approx(expected, rel=1e-9)


def test_accountant_of_correlated_bins_refuses_a_plan_without_an_encoder():
    accountant = analyses.find("correlated-gaussian", "balls-and-bins")
    with pytest.raises(DpsumError, match="needs the encoder's weights, not z alone"):
        accountant.high(Events.planned(((Z, 4),), SAMPLER), DELTA)


def test_image_of_several_clients_in_correlated_bins():
    releases = releases_of()
    accountant = analyses.of(releases)
    use = ImageUse(images=np.zeros((3, 1), int), rounds=None)
    low, high = accountant.image(accountant.read(releases), use, DELTA)
    one_client = importance_sampling.bracket(unit_encoder(4, 2) / Z, 4, DELTA)[0]
    assert low == pytest.approx(one_client, rel=1e-9)
    assert high == pytest.approx(gaussian_epsilon(Z / 3, DELTA), rel=1e-9)


@pytest.mark.parametrize("scale", [1e-17, 1e-34])
def test_bracket_ignores_what_an_inversion_leaves_of_zero(scale):
    encoder = unit_encoder(8, 2) / 1.5
    rng = np.random.default_rng(0)
    residue = scale * rng.random((8, 8)) * 10.0 ** rng.integers(-18, 1, (8, 8))
    ends = importance_sampling.bracket(encoder + np.tril(residue, -2), 8, 1e-6)
    expected = importance_sampling.bracket(encoder, 8, 1e-6)
    assert ends == pytest.approx(expected, rel=1e-3)


def test_mechanism_calibrates_correlated_bins_and_its_ledger_agrees():
    weights = factorisations.scaled(np.linalg.inv(unit_encoder(8, 2)))
    ledger = []
    mechanism = make_mechanism(
        dimension=3,
        participation=dpsum.BallsAndBins(units=80, cohort=10, rounds=8, seed=1),
        noise=dpsum.Correlated(multiplier=None, weights=weights),
        clipping=dpsum.Constant(0.5),
        ledger=ledger,
        seed=1,
        budget=dpsum.Budget(epsilon=1.5, delta=1e-6),
    )
    release_rounds(mechanism, np.zeros((1, 3)), 8)
    entry = account(ledger, delta=1e-6).profiles["proven"]
    assert 1.49 < entry.epsilon_high <= 1.5
    assert 0.97 * entry.epsilon_high < entry.epsilon_low < entry.epsilon_high
    known_round = gaussian_epsilon(mechanism.noise_multiplier, 1e-6)
    assert entry.epsilon_high < 0.8 * known_round
