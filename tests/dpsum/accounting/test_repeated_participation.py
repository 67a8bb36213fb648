"""Several participations in known rounds, and known shuffled epochs.

Expected values are brute force over all sets of rounds, closed forms, quadrature, and
jax_privacy 2.0.
"""

import itertools
import math

import numpy as np
import pytest

from dploss.gaussian import gaussian_epsilon
from dpsum.accounting import analyses
from dpsum.accounting.account import account
from dpsum.accounting.calibration import epsilon_after
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.repeated_participation import sensitivity
from tests.dpsum.accounting.helpers import banded_square_root, correlated_releases
from tests.dpsum.helpers import make_release, make_releases

DELTA = 1e-6
Z = 2.0
SAMPLER = {
    "kind": "min-separation",
    "clients": 300,
    "cohort": 90,
    "rounds": 10,
    "rate": 0.3,
    "separation": 3,
    "participations": 3,
}
EPOCHS = {
    "kind": "shuffled-epochs",
    "clients": 100,
    "cohort": 20,
    "rounds": 10,
    "rate": 0.2,
    "epoch": 5,
    "batches": "known",
}


def patterns(rounds, separation, participations):
    """Yield all sets of rounds that are so far apart."""
    for count in range(1, participations + 1):
        for indices in itertools.combinations(range(rounds), count):
            gaps = (late - early for early, late in itertools.pairwise(indices))
            if all(gap >= separation for gap in gaps):
                yield list(indices)


def brute_force_sensitivity(gram, separation, participations):
    indices = patterns(len(gram), separation, participations)
    return math.sqrt(max(np.abs(gram[np.ix_(at, at)]).sum() for at in indices))


def gram_of(encoder):
    return encoder.T @ encoder


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
    ("rounds", "bands", "separation", "participations", "expected"),
    [
        (40, 4, 10, 4, 2.439902661992892),
        (64, 16, 16, 4, 2.788461114777662),
        (100, 25, 30, 3, 2.5026225182511572),
        (40, 40, 10, 4, 3.8813174427331667),
        (12, 12, 3, 3, 3.0705364864907208),
    ],
)
def test_sensitivity_agrees_with_jax_privacy(
    rounds, bands, separation, participations, expected
):
    """Its `get_sensitivity_banded`, and `get_min_sep_sensitivity_upper_bound` for more
    bands, in double precision.
    """
    gram = gram_of(banded_square_root(rounds, bands))
    high = sensitivity(gram, separation, participations)[1]
    assert high == pytest.approx(expected, rel=1e-9)


def releases_of(sampler=SAMPLER, rounds=10, multipliers=None):
    """Return lines of independent noise: z = 2, or a multiplier for each round."""
    if multipliers is None:
        return make_releases(rounds, z=Z, sampler=sampler)
    return [
        make_release(round=index, z=z, sampler=sampler)
        for index, z in enumerate(multipliers)
    ]


def correlated(weights, count=10, **changes):
    """Return lines of correlated noise of z = 2."""
    return correlated_releases(weights, count, sampler={**SAMPLER, **changes})


def ends_of(releases, profile="proven"):
    entry = account(releases, delta=DELTA, claims={}).profiles[profile]
    return entry.epsilon_low, entry.epsilon_high


def gaussian(z, rel=1e-9):
    return pytest.approx(gaussian_epsilon(z, DELTA), rel=rel)


@pytest.mark.parametrize(
    ("sampler", "rounds", "count"),
    [
        (SAMPLER, 10, 3),
        (SAMPLER, 4, 2),
        (SAMPLER, 3, 1),
        (EPOCHS, 10, 2),
        (EPOCHS, 6, 2),
        (EPOCHS, 5, 1),
    ],
)
def test_known_rounds_are_one_gaussian_of_all_participations(sampler, rounds, count):
    """Rounds three apart, at most three of them; or one round of each epoch."""
    expected = gaussian(Z / count**0.5, rel=1e-12)
    releases = releases_of(sampler, rounds)
    assert ends_of(releases) == (expected, expected)
    doubled = gaussian(Z / count**0.5 / 2, rel=1e-12)
    assert ends_of(releases, "replace_one")[1] == doubled
    assert epsilon_after("proven", sampler, Z, rounds, DELTA) == expected


@pytest.mark.parametrize(
    ("sampler", "multipliers", "square"),
    [
        # Rounds 1, 4 and 8: 1/1 + 1/4 + 1/4.
        (SAMPLER, [4.0, 1.0, 1.0, 4.0, 2.0, 4.0, 4.0, 4.0, 2.0, 4.0], 1.5),
        # The least noise of each epoch: 1/1 + 1/4.
        (EPOCHS, [4.0, 1.0, 4.0, 4.0, 2.0, 4.0, 4.0, 4.0, 4.0, 2.0], 1.25),
    ],
)
def test_known_rounds_of_different_noise_take_the_worst_rounds(
    sampler, multipliers, square
):
    expected = gaussian(square**-0.5, rel=1e-12)
    assert ends_of(releases_of(sampler, multipliers=multipliers))[1] == expected


def scaled_weights(bands):
    """Return C^-1 of ten rounds, and the sensitivity of three rounds three apart."""
    encoder = banded_square_root(10, bands)
    encoder /= np.sqrt((encoder**2).sum(axis=0).max())
    return np.linalg.inv(encoder), brute_force_sensitivity(gram_of(encoder), 3, 3)


@pytest.mark.parametrize("bands", [1, 3, 4, 10])
def test_correlated_noise_is_one_gaussian_of_several_columns(bands):
    """Up to three bands cost sqrt(3), as independent noise does; a fourth lets columns
    overlap, and costs more.
    """
    weights, moved = scaled_weights(bands)
    expected = gaussian(Z / moved)
    assert ends_of(correlated(weights)) == (expected, expected)
    assert ends_of(correlated(weights), "replace_one")[1] == gaussian(Z / moved / 2)
    independent = ends_of(releases_of())[1]
    if bands <= 3:
        assert moved == pytest.approx(3**0.5, rel=1e-12)
        assert ends_of(correlated(weights))[1] == pytest.approx(independent, rel=1e-9)
    else:
        assert ends_of(correlated(weights))[1] > 1.02 * independent


def test_correlated_noise_is_accounted_for_by_the_pattern_of_the_ledger():
    weights, _ = scaled_weights(10)
    encoder = np.linalg.inv(weights)
    epsilons = []
    for separation, participations in ((10, 1), (5, 2), (3, 2), (3, 3), (1, 10)):
        releases = correlated(
            weights,
            separation=separation,
            participations=participations,
            cohort=30,
            rate=0.1,
        )
        epsilons.append(ends_of(releases)[1])
        largest = max(
            np.linalg.norm(encoder[:, at].sum(axis=1))
            for at in patterns(10, separation, participations)
        )
        assert epsilons[-1] == gaussian(Z / largest)
    assert epsilons == sorted(set(epsilons))


def test_correlated_noise_of_negative_weights_has_two_ends():
    """By hand: C^T C is [[5/4, -1/2], [-1/2, 1]] / (5/4). Both columns make 9/4 at
    right angles and 13/4 at most.
    """
    encoder = np.array([[1.0, 0.0], [-0.5, 1.0]]) / math.sqrt(1.25)
    weights = np.linalg.inv(encoder)
    releases = correlated(weights, 2, separation=1, participations=2, rounds=2)
    low, high = (Z / math.sqrt(square / 1.25) for square in (9 / 4, 13 / 4))
    assert ends_of(releases) == (gaussian(low), gaussian(high))


@pytest.mark.parametrize("releases", [releases_of(), correlated(scaled_weights(3)[0])])
def test_image_of_two_clients_in_the_same_rounds_moves_twice_as_far(releases):
    use = ImageUse(images=np.zeros((2, 1), int), rounds=None)
    accountant = analyses.of(releases)
    low, high = accountant.image(accountant.read(releases), use, DELTA)
    assert low == gaussian(Z / 3**0.5)
    assert high == gaussian(Z / 3**0.5 / 2)
