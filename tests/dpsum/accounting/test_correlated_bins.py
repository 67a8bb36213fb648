"""Correlated noise in secret rounds: quadrature, balls-and-bins, and ledgers."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy.stats import norm

import dpsum
from dploss import importance_sampling
from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError, factorisations
from dpsum.accounting import analyses, calibration
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import balls_and_bins
from dpsum.accounting.analyses import correlated_balls_and_bins as correlated_bins
from dpsum.accounting.image_level import ImageUse
from tests.dpsum.accounting import helpers
from tests.dpsum.accounting.helpers import (
    COHORTS,
    banded_square_root,
    correlated_releases,
    ends,
    gaussian,
    positive_root,
    profiles_of,
    sampled_gaussian_epsilon,
)
from tests.dpsum.helpers import make_mechanism, release_rounds

DELTA = 1e-4
Z = 2.0
SAMPLER = {"kind": "balls-and-bins", **COHORTS}


def unit_encoder(rounds, bands):
    """Return the banded square root, scaled to a largest column of norm 1."""
    encoder = banded_square_root(rounds, bands)
    return encoder / np.linalg.norm(encoder, axis=0).max()


@dataclasses.dataclass(frozen=True)
class TwoBands(factorisations.Factorisation):
    """Factorisation of the banded square root."""

    def weights(self, rounds, step):
        return factorisations.scaled(np.linalg.inv(unit_encoder(rounds, 2)))


def grid_of_releases(rounds, z):
    """Return points [rounds, points] and the chance of each without the unit."""
    line = np.linspace(-8.5 - 3 / z, 8.5 + 3 / z, {2: 1201, 3: 141}[rounds])
    points = np.stack(np.meshgrid(*[line] * rounds, indexing="ij")).reshape(rounds, -1)
    return points, (norm.pdf(points) * (line[1] - line[0])).prod(axis=0)


def likelihood_ratio(encoder, z, points, contributions=1.0):
    """Return dP/dQ at each point; `contributions` is a number or [rounds, points]."""
    scaled = encoder / z
    squares = (scaled**2).sum(axis=0)[:, None] * contributions**2
    return np.exp(contributions * (scaled.T @ points) - squares / 2).mean(axis=0)


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


# Faster: the same encoders at z = 4.
@pytest.mark.parametrize(
    "z", [*(pytest.param(z, marks=pytest.mark.slow) for z in (0.7, 1.5)), 4.0]
)
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
    [np.sign, np.tanh, lambda first: first > 0.5, lambda first: np.sign(1 - first)],
)
def test_correlated_bins_cover_contributions_that_follow_releases(second_contribution):
    """Two rounds; sign and size of the second contribution follow the first release."""
    encoder = unit_encoder(2, 2)
    points, chances = grid_of_releases(2, 1.0)
    most = exact_epsilon(likelihood_ratio(encoder, 1.0, points), chances, DELTA)
    contributions = np.ones_like(points)
    contributions[1] = second_contribution(points[0])
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
        ratio = likelihood_ratio(encoder, 1.0, points, np.array(signs)[:, None])
        assert exact_epsilon(ratio, chances, DELTA) <= high
    assert high == pytest.approx(bracket(np.abs(encoder), 1.0)[1], rel=1e-12)


def test_correlated_bins_without_correlation_are_balls_and_bins():
    expected = helpers.bracket(balls_and_bins, 1.0, 40, 40, 1e-6)
    assert bracket(np.eye(40), 1.0, delta=1e-6) == expected


def test_correlated_bins_of_a_stopped_run_are_one_sampled_gaussian():
    """One of two rounds: the unit was in it with a chance of a half."""
    encoder = unit_encoder(2, 2)
    exact = sampled_gaussian_epsilon(1 / encoder[0, 0], 0.5, DELTA)
    low, high = bracket(encoder, 1.0, done=1)
    assert low <= exact + 1e-5
    assert exact - 1e-5 <= high <= exact + 2e-3


def releases_of(**changes):
    """Return lines of four rounds with banded noise, z = 2."""
    weights = np.linalg.inv(unit_encoder(4, 2))
    return correlated_releases(weights, sampler=SAMPLER, **changes)


def test_account_of_correlated_bins_is_the_narrow_bracket():
    encoder = unit_encoder(4, 2)
    profiles = profiles_of(releases_of(), DELTA)
    proven = profiles["proven"]
    assert proven.status == "proved"
    expected = importance_sampling.bracket(encoder / Z, 4, DELTA)
    assert ends(proven) == pytest.approx(expected, rel=1e-9)
    low, high = bracket(encoder, Z)
    assert low < proven.epsilon_low < proven.epsilon_high < high
    assert profiles["replace_one"].epsilon_high > proven.epsilon_high
    stopped = profiles_of(releases_of(rounds=3), DELTA)["proven"]
    expected = importance_sampling.bracket(encoder[:3, :3] / Z, 4, DELTA)
    assert ends(stopped) == pytest.approx(expected, rel=1e-9)


def test_accountant_of_correlated_bins_has_images_but_no_plan_without_an_encoder():
    releases = releases_of()
    accountant = analyses.of(releases)
    use = ImageUse(images=np.zeros((3, 1), int), rounds=None)
    low, high = accountant.image(accountant.read(releases), use, DELTA)
    one_client = importance_sampling.bracket(unit_encoder(4, 2) / Z, 4, DELTA)[0]
    assert low == pytest.approx(one_client, rel=1e-9)
    assert high == gaussian(Z / 3, DELTA)
    with pytest.raises(DpsumError, match="needs the encoder's weights, not z alone"):
        accountant.high(Events.planned(((Z, 4),), SAMPLER), DELTA)


@pytest.mark.parametrize("scale", [1e-17, 1e-34])
def test_bracket_ignores_what_an_inversion_leaves_of_zero(scale):
    encoder = unit_encoder(8, 2) / 1.5
    rng = np.random.default_rng(0)
    residue = scale * rng.random((8, 8)) * 10.0 ** rng.integers(-18, 1, (8, 8))
    bracket = importance_sampling.bracket(encoder + np.tril(residue, -2), 8, 1e-6)
    expected = importance_sampling.bracket(encoder, 8, 1e-6)
    assert bracket == pytest.approx(expected, rel=1e-3)


# Faster: the brackets of this file; mechanisms of the other samplers are calibrated by
# the same code.
@pytest.mark.slow
def test_mechanism_calibrates_correlated_bins_and_its_ledger_agrees():
    ledger = []
    parts = {
        "participation": dpsum.BallsAndBins(units=80, cohort=10, rounds=8, seed=1),
        "noise": dpsum.Factorised(None, TwoBands(), rounds=8),
        "clipping": dpsum.Constant(0.5),
        "budget": dpsum.Budget(epsilon=1.5, delta=1e-6),
    }
    mechanism = make_mechanism(dimension=3, ledger=ledger, seed=1, **parts)
    release_rounds(mechanism, np.zeros((1, 3)), 8)
    entry = profiles_of(ledger, 1e-6)["proven"]
    assert 1.49 < entry.epsilon_high <= 1.5
    assert 0.97 * entry.epsilon_high < entry.epsilon_low < entry.epsilon_high
    known_round = gaussian_epsilon(mechanism.noise_multiplier, 1e-6)
    assert entry.epsilon_high < 0.8 * known_round


# Searches by Monte Carlo bounds, which may be wrong

MANY_ROUNDS = dpsum.BallsAndBins(units=1024, cohort=4, rounds=256).describe()
calibrate = functools.partial(calibration.calibrate, "proven", MANY_ROUNDS, 1.0, 1e-5)
rounds_allowed = functools.partial(
    calibration.rounds_allowed, "proven", MANY_ROUNDS, 1.0, 1e-5, 1.0
)


@pytest.fixture
def run_search(monkeypatch):
    """Return a function that returns a search's result, and the points that it asked.

    The true epsilon is `scale` x rounds / z, and the budget 1. At points (z, rounds)
    outside `honest` a true "too much" is told as "enough". With `rng` a true "enough"
    is sometimes told as "too much".
    """

    def run(search, scale, honest=None, rng=None):
        points = set()

        def epsilon_after(profile, sampler, z, done, delta):
            points.add((z, done))
            epsilon = scale * done / z
            if epsilon > 1:
                is_lie = honest is not None and (z, done) not in honest
                return 0.0 if is_lie else epsilon
            is_doubted = rng is not None and rng.random() < 0.3
            return math.inf if is_doubted else epsilon

        monkeypatch.setattr(calibration, "epsilon_after", epsilon_after)
        return search(), points

    return run


def test_run_looks_at_fewer_pairs_than_allowed(run_search):
    """Three ends at each of the list's epsilons and a hundred looks fail together with
    probability at most delta / 1,000.
    """
    pair = importance_sampling.Pair(np.eye(3), 3, 1e-6)
    assert 100 * 3 * importance_sampling._STEPS * pair._doubt <= 1e-6 / 1000
    counts = []
    for enough in np.geomspace(0.051, 8000, 60):  # the z that is just enough
        z, points = run_search(calibrate, enough / 256)
        assert z >= enough
        counts.append(len(points))
    assert max(counts) <= 32
    _, points = run_search(rounds_allowed, 1 / 100)
    sampling = dataclasses.replace(MANY_ROUNDS, encoder=np.eye(256).tobytes())
    pairs = set()
    for done in range(1, 257):
        encoder, rounds = correlated_bins._of(Events.planned(((1.0, done),), sampling))
        pairs.add((encoder.tobytes(), rounds))
    assert len(pairs) == 8
    accounts = 2  # the run's delta and the paper's
    looks = max(counts) + len(points) + len(pairs) + accounts
    assert looks <= importance_sampling.LOOKS


def test_search_errs_only_at_points_that_true_answers_lead_to(run_search):
    """All other points have wrong answers, and true answers are doubted at random; 200
    searches each.
    """
    rng = np.random.default_rng(0)
    for _ in range(200):
        enough = float(rng.uniform(0.06, 50))
        _, honest = run_search(calibrate, enough / 256)
        assert run_search(calibrate, enough / 256, honest, rng)[0] >= enough
        most = int(rng.integers(1, 256))
        allowed, honest = run_search(rounds_allowed, 1 / (most + 0.5))
        assert allowed == most
        assert run_search(rounds_allowed, 1 / (most + 0.5), honest, rng)[0] <= most
    # A lie at such a point is believed.
    assert run_search(calibrate, 5 / 256, honest=set())[0] < 5


def test_bounds_of_a_pair_are_wrong_together_or_not_at_all():
    """A second look at a pair has the same draws."""
    pairs = [importance_sampling.Pair(np.eye(3) / 1.5, 3, 1e-3) for _ in range(2)]
    for epsilon in (0.5, 1.0, 1.5):
        assert pairs[0].present(epsilon) == pairs[1].present(epsilon)
        assert pairs[0].absent(epsilon) == pairs[1].absent(epsilon)
    pairs[1].present(0.7)
    assert pairs[1].present(0.5) == pairs[0].present(0.5)
