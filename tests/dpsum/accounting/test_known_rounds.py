"""Participations in known rounds: correlated noise, one pass, and shuffled epochs.

Expected values are brute force over all sets of rounds, closed forms, and jax_privacy
2.0.
"""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError
from dpsum.accounting import analyses
from dpsum.accounting.accountant import Events
from dpsum.accounting.calibration import calibrate, epsilon_after
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.repeated_participation import sensitivity
from dpsum.factorisations import SquareRoot
from tests.dpsum.accounting import helpers
from tests.dpsum.accounting.helpers import (
    banded_square_root,
    correlated_releases,
    profiles_of,
)
from tests.dpsum.helpers import make_release

DELTA = 1e-6
Z = 2.0
C = 0.5
NORM = math.sqrt(1.25)
ONE_PASS = correlated_releases()[0].sampler
COHORTS = {"clients": 300, "cohort": 90, "rounds": 10, "rate": 0.3}
SEPARATED = {"kind": "min-separation", **COHORTS, "separation": 3, "participations": 3}
EPOCHS = {"clients": 100, "cohort": 20, "rounds": 10, "rate": 0.2, "epoch": 5}
EPOCHS |= {"kind": "shuffled-epochs", "batches": "known"}

gaussian = functools.partial(helpers.gaussian, delta=DELTA)


def ends_of(releases, profile="proven", **context):
    entry = profiles_of(releases, DELTA, claims={}, **context)[profile]
    assert entry.status == "proved"
    return helpers.ends(entry)


# One pass


def test_correlated_one_pass_is_one_gaussian():
    """Calibration finds 2.905, as for one pass in docs/privacy.md."""
    for weights in (None, np.eye(4)):
        assert ends_of(correlated_releases(weights)) == (gaussian(Z), gaussian(Z))
    mechanism = "correlated-gaussian"
    assert calibrate("proven", ONE_PASS, 1.5, DELTA, mechanism=mechanism) == 2.905
    epsilon = epsilon_after("proven", ONE_PASS, Z, 4, DELTA, mechanism=mechanism)
    assert epsilon == gaussian_epsilon(Z, DELTA)


def test_correlated_one_pass_of_a_stopped_run_has_its_own_encoder():
    """By hand: of one round alone the noise is z times the whole encoder's norm, (1 +
    1/4 + 9/64 + 25/256)^1/2.
    """
    norm = math.sqrt(1 + 1 / 4 + 9 / 64 + 25 / 256)
    assert ends_of(correlated_releases(rounds=1))[1] == gaussian(Z * norm)
    assert ends_of(correlated_releases(rounds=2))[1] == gaussian(Z * norm / NORM)


def test_correlated_one_pass_is_the_best_test_of_two_neighbours():
    """The distance of two Gaussians of one covariance, for the worst round."""
    weights = SquareRoot().weights(4, None)
    covariance = (Z * C) ** 2 * weights @ weights.T
    distance = C * math.sqrt(np.linalg.inv(covariance).diagonal().max())
    assert ends_of(correlated_releases())[1] == gaussian(1 / distance)


@pytest.mark.parametrize(("clients", "square"), [(7, 7.2), (4, 6.4)])
def test_correlated_image_in_several_rounds_by_hand(clients, square):
    """C = [[1, 0], [1/2, 1]] / norm, norm^2 = 5/4: C^T C = [[5/4, 1/2], [1/2, 1]] /
    norm^2. Image 7 is with two clients of round 0 and one of round 1: (4 x 5/4 + 2 x 2
    x 1/2 + 1) / (5/4) = 6.4; image 8 with three of round 1: 9 / (5/4) = 7.2.
    """
    releases = correlated_releases(np.array([[NORM, 0.0], [-NORM / 2, NORM]]), rounds=2)
    images = np.array([[7], [7], [7], [8], [8], [8], [9]])
    rounds = np.array([0, 0, 1, 1, 1, 1, -1])
    use = ImageUse(images=images[:clients], rounds=rounds[:clients])
    expected = gaussian(Z / math.sqrt(square))
    assert ends_of(releases, "image_level", images=use) == (expected, expected)


def test_correlated_image_of_negative_weights_has_two_ends():
    """Clients who point in opposite ways are further apart: the high end takes them."""
    releases = correlated_releases(np.array([[NORM, 0.0], [NORM / 2, NORM]]), rounds=2)
    use = ImageUse(images=np.array([[7], [7]]), rounds=np.array([0, 1]))
    squares = (5 / 4 + 1 - 1) / (5 / 4), (5 / 4 + 1 + 1) / (5 / 4)
    expected = tuple(gaussian(Z / math.sqrt(square)) for square in squares)
    assert ends_of(releases, "image_level", images=use) == expected
    events = Events.planned(((Z, 4),), ONE_PASS)
    with pytest.raises(DpsumError, match="needs the ledger's weights"):
        analyses.of(correlated_releases()).image(events, use, DELTA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            ({"combines": weights}, "release 3 does not state the weights")
            for weights in (None, [1.0], [0.0] * 4)
        ),
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
        ends_of(correlated_releases(SquareRoot().weights(4, None) / 1.2))


# Several participations


def patterns(rounds, separation, participations):
    """Yield all sets of rounds that are so far apart."""
    for count in range(1, participations + 1):
        for indices in itertools.combinations(range(rounds), count):
            if (np.diff(indices) >= separation).all():
                yield list(indices)


def brute_force_sensitivity(gram, separation, participations):
    indices = patterns(len(gram), separation, participations)
    return math.sqrt(max(np.abs(gram[np.ix_(at, at)]).sum() for at in indices))


def gram_of(encoder):
    return encoder.T @ encoder


def drawn_sensitivity(gram, separation, participations):
    """Return how far contributions in the rounds t, t + b, ... move the releases.

    The largest over t, and over all signs of contributions along one direction.
    """
    squares = []
    for first in range(min(separation, len(gram))):
        at = np.arange(first, len(gram), separation)[:participations]
        block = gram[np.ix_(at, at)]
        for signs in itertools.product((1, -1), repeat=len(at)):
            squares.append(np.array(signs) @ block @ np.array(signs))
    return math.sqrt(max(squares))


def test_sensitivity_low_end_is_of_rounds_that_are_drawn():
    """Uneven columns, whose heaviest rounds are not at equal distances."""
    rng = np.random.default_rng(3)
    above = 0
    for _ in range(200):
        separation, participations = map(int, rng.integers(1, 4, 2))
        rounds = rng.integers(2, 9)
        gram = gram_of(np.tril(rng.normal(size=(rounds, rounds))))
        low, high = sensitivity(gram, separation, participations)
        drawn = drawn_sensitivity(gram, separation, participations)
        assert low <= drawn * (1 + 1e-12)
        assert drawn <= high * (1 + 1e-12)
        allowed = brute_force_sensitivity(gram, separation, participations)
        above += allowed > 1.1 * drawn
    assert above >= 40


def test_correlated_noise_of_uneven_columns_has_a_low_end_that_is_drawn():
    """Columns 0 and 5 are the heaviest: they are five apart, but rounds three apart
    are drawn: {0, 3}, {1, 4} or {2, 5}. Orthogonal columns of norms c: epsilon of
    multiplier z / (c_s^2 + c_t^2)^1/2.
    """
    norms = np.array([1.0, 0.5, 0.25, 0.25, 0.5, 1.0])
    sampler = {"kind": "min-separation", "clients": 30, "cohort": 10, "rounds": 6}
    sampler |= {"rate": 1 / 3, "separation": 3, "participations": 2}
    releases = correlated_releases(np.diag(1 / norms), 6, sampler=sampler)
    low, high = ends_of(releases)
    assert low == gaussian(Z / (1.0 + 0.25**2) ** 0.5, rel=1e-9)
    assert high == gaussian(Z / 2**0.5, rel=1e-9)


def test_independent_noise_of_uneven_rounds_has_a_low_end_that_is_drawn():
    """Least noise in rounds 0 and 5: allowed three apart, but drawn are 0 and 3, and 2
    and 5. In epochs of three rounds, a unit has at least the most noise of each.
    """
    multipliers = [1.0, 4.0, 4.0, 4.0, 4.0, 1.0]
    sampler = {"kind": "min-separation", "clients": 30, "cohort": 10, "rounds": 6}
    sampler |= {"rate": 1 / 3, "separation": 3, "participations": 2}
    low, high = ends_of(releases_of(sampler, multipliers))
    assert low == gaussian((1 + 1 / 16) ** -0.5, rel=1e-9)
    assert high == gaussian(2**-0.5, rel=1e-9)
    epochs = EPOCHS | {"rounds": 6, "epoch": 3, "clients": 30, "cohort": 10}
    low, high = ends_of(releases_of(epochs | {"rate": 1 / 3}, multipliers))
    assert low == gaussian((2 / 16) ** -0.5, rel=1e-9)
    assert high == gaussian(2**-0.5, rel=1e-9)


def test_sensitivity_ends_enclose_brute_force():
    rng = np.random.default_rng(2)
    for _ in range(60):
        separation, participations = map(int, rng.integers(1, 4, 2))
        rounds = rng.integers(2, 9)
        gram = gram_of(np.tril(rng.normal(size=(rounds, rounds))))
        low, high = sensitivity(gram, separation, participations)
        exact = brute_force_sensitivity(gram, separation, participations)
        assert low <= exact * (1 + 1e-12)
        assert exact <= high * (1 + 1e-12)


@pytest.mark.parametrize("bands", [1, 3, 4, 12])
def test_sensitivity_of_falling_weights_is_exact(bands):
    """Up to three bands columns are orthogonal: the root of three times the largest
    square.
    """
    gram = gram_of(banded_square_root(12, bands))
    expected = pytest.approx(brute_force_sensitivity(gram, 3, 3), rel=1e-12)
    assert sensitivity(gram, 3, 3) == (expected, expected)
    if bands <= 3:
        assert math.sqrt(3 * np.diag(gram).max()) == expected


@pytest.mark.parametrize(
    ("shape", "pattern", "expected"),
    [
        ((40, 4), (10, 4), 2.439902661992892),
        ((64, 16), (16, 4), 2.788461114777662),
        ((100, 25), (30, 3), 2.5026225182511572),
        ((40, 40), (10, 4), 3.8813174427331667),
        ((12, 12), (3, 3), 3.0705364864907208),
    ],
)
def test_sensitivity_agrees_with_jax_privacy(shape, pattern, expected):
    """Its `get_sensitivity_banded`, and `get_min_sep_sensitivity_upper_bound` for more
    bands, in double precision; of (rounds, bands) and (separation, participations).
    """
    high = sensitivity(gram_of(banded_square_root(*shape)), *pattern)[1]
    assert high == pytest.approx(expected, rel=1e-9)


def releases_of(sampler, multipliers):
    """Return lines of independent noise."""
    return [
        make_release(round=index, z=z, sampler=sampler)
        for index, z in enumerate(multipliers)
    ]


def correlated(weights, count=10, **changes):
    """Return lines of correlated noise of z = 2."""
    return correlated_releases(weights, count, sampler={**SEPARATED, **changes})


@pytest.mark.parametrize(
    ("sampler", "rounds", "count"),
    [
        (SEPARATED, 10, 3),
        (SEPARATED, 4, 2),
        (SEPARATED, 3, 1),
        (EPOCHS, 10, 2),
        (EPOCHS, 6, 2),
        (EPOCHS, 5, 1),
    ],
)
def test_known_rounds_are_one_gaussian_of_all_participations(sampler, rounds, count):
    """Rounds three apart, at most three of them; or one round of each epoch."""
    expected = gaussian(Z / count**0.5, rel=1e-12)
    releases = releases_of(sampler, [Z] * rounds)
    assert ends_of(releases) == (expected, expected)
    doubled = gaussian(Z / count**0.5 / 2, rel=1e-12)
    assert ends_of(releases, "replace_one")[1] == doubled
    assert epsilon_after("proven", sampler, Z, rounds, DELTA) == expected


@pytest.mark.parametrize(
    ("sampler", "multipliers", "square"),
    [
        # Rounds 1, 4 and 8: 1/1 + 1/4 + 1/4.
        (SEPARATED, [4.0, 1.0, 1.0, 4.0, 2.0, 4.0, 4.0, 4.0, 2.0, 4.0], 1.5),
        # The least noise of each epoch: 1/1 + 1/4.
        (EPOCHS, [4.0, 1.0, 4.0, 4.0, 2.0, 4.0, 4.0, 4.0, 4.0, 2.0], 1.25),
    ],
)
def test_known_rounds_of_different_noise_take_the_worst_rounds(
    sampler, multipliers, square
):
    expected = gaussian(square**-0.5, rel=1e-12)
    assert ends_of(releases_of(sampler, multipliers))[1] == expected


def scaled_weights(bands):
    """Return C^-1 of ten rounds, and the sensitivity of three rounds three apart."""
    encoder = banded_square_root(10, bands)
    encoder /= np.linalg.norm(encoder, axis=0).max()
    return np.linalg.inv(encoder), brute_force_sensitivity(gram_of(encoder), 3, 3)


@pytest.mark.parametrize("bands", [1, 3, 4, 10])
def test_correlated_noise_is_one_gaussian_of_several_columns(bands):
    """Up to three bands cost sqrt(3), as independent noise does; a fourth lets columns
    overlap, and costs more.
    """
    weights, moved = scaled_weights(bands)
    releases = correlated(weights)
    assert ends_of(releases) == (gaussian(Z / moved), gaussian(Z / moved))
    assert ends_of(releases, "replace_one")[1] == gaussian(Z / moved / 2)
    independent = ends_of(releases_of(SEPARATED, [Z] * 10))[1]
    if bands <= 3:
        assert moved == pytest.approx(3**0.5, rel=1e-12)
        assert ends_of(releases)[1] == pytest.approx(independent, rel=1e-9)
    else:
        assert ends_of(releases)[1] > 1.02 * independent


def test_correlated_noise_is_accounted_for_by_the_pattern_of_the_ledger():
    weights, _ = scaled_weights(10)
    encoder = np.linalg.inv(weights)
    cohorts = {"cohort": 30, "rate": 0.1}
    epsilons = []
    for pattern in ((10, 1), (5, 2), (3, 2), (3, 3), (1, 10)):
        cohorts["separation"], cohorts["participations"] = pattern
        epsilons.append(ends_of(correlated(weights, **cohorts))[1])
        columns = (encoder[:, at].sum(axis=1) for at in patterns(10, *pattern))
        assert epsilons[-1] == gaussian(Z / max(map(np.linalg.norm, columns)))
    assert epsilons == sorted(set(epsilons))


def test_correlated_noise_of_negative_weights_has_two_ends():
    """By hand: C^T C is [[5/4, -1/2], [-1/2, 1]] / (5/4). Both columns make 9/4 at
    right angles and 13/4 at most.
    """
    weights = np.linalg.inv(np.array([[1.0, 0.0], [-0.5, 1.0]]) / NORM)
    releases = correlated(weights, 2, separation=1, participations=2, rounds=2)
    low, high = (Z / math.sqrt(square / 1.25) for square in (9 / 4, 13 / 4))
    assert ends_of(releases) == (gaussian(low), gaussian(high))


@pytest.mark.parametrize(
    "releases", [releases_of(SEPARATED, [Z] * 10), correlated(scaled_weights(3)[0])]
)
def test_image_of_two_clients_in_the_same_rounds_moves_twice_as_far(releases):
    use = ImageUse(images=np.zeros((2, 1), int), rounds=None)
    accountant = analyses.of(releases)
    low, high = accountant.image(accountant.read(releases), use, DELTA)
    assert low == gaussian(Z / 3**0.5)
    assert high == gaussian(Z / 3**0.5 / 2)
