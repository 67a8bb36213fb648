"""Correlated noise in secret rounds by draws: quadrature, balls-and-bins, jax_privacy
and a plain simulation.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from dploss import importance_sampling
from dploss.importance_sampling import bracket
from dpsum import factorisations
from dpsum.accounting.analyses import balls_and_bins
from tests.dpsum.accounting.test_correlated_bins import (
    exact_epsilon,
    grid_of_releases,
    likelihood_ratio,
    unit_encoder,
)

DELTA = 1e-4


def square_root_encoder(rounds):
    return np.abs(np.linalg.inv(factorisations.SquareRoot().weights(rounds, None)))


# Faster: the same encoders at z = 0.7.
@pytest.mark.parametrize(
    "z", [0.7, *(pytest.param(z, marks=pytest.mark.slow) for z in (1.5, 4.0))]
)
@pytest.mark.parametrize(("rounds", "bands"), [(2, 2), (3, 2), (3, 3)])
def test_bracket_of_two_and_three_rounds_is_a_quadrature(rounds, bands, z):
    """Epsilon, and delta of either direction. The ends tell one band, one round of the
    draw, or a twentieth of the noise from another.
    """
    encoder = unit_encoder(rounds, bands)
    points, chances = grid_of_releases(rounds, z)
    ratio = likelihood_ratio(encoder, z, points)
    exact = exact_epsilon(ratio, chances, DELTA)
    low, high = bracket(encoder / z, rounds, DELTA)
    assert low <= exact + 2e-4
    assert exact - 2e-4 <= high < 1.04 * low
    pair = importance_sampling.Pair(encoder / z, rounds, DELTA)
    tolerance = 1e-2 * DELTA
    for epsilon in (0.7 * exact, exact):
        least, most = pair.present(epsilon)
        present = float(chances @ np.maximum(ratio - math.exp(epsilon), 0.0))
        absent = float(chances @ np.maximum(1 - math.exp(epsilon) * ratio, 0.0))
        assert least - tolerance <= present <= most + tolerance
        assert absent <= pair.absent(epsilon) + tolerance
    if z > 1:
        fewer_bands = unit_encoder(rounds, bands - 1) / z
        assert bracket(fewer_bands, rounds, DELTA)[1] < low
        assert bracket(encoder / z, rounds + 1, DELTA)[1] < low
        assert bracket(encoder / (1.05 * z), rounds, DELTA)[1] < low


def test_bracket_of_a_stopped_run_is_a_quadrature():
    """Two of three rounds: the unit was in neither with a chance of a third."""
    encoder = unit_encoder(3, 3)[:2, :2]
    points, chances = grid_of_releases(2, 1.0)
    ratio = (2 * likelihood_ratio(encoder, 1.0, points) + 1) / 3
    exact = exact_epsilon(ratio, chances, DELTA)
    low, high = bracket(encoder, 3, DELTA)
    assert low <= exact + 2e-4
    assert exact - 2e-4 <= high < 1.03 * low


def test_pair_without_correlation_is_balls_and_bins():
    z = 1.5
    rounds = 30
    pair = importance_sampling.Pair(np.eye(rounds) / z, rounds, DELTA)
    arguments = z, rounds, rounds, DELTA
    least, most = pair.present(balls_and_bins.lower_epsilon(*arguments))
    assert least > 0.85 * DELTA
    assert DELTA <= most < 1.15 * DELTA
    assert pair.present(balls_and_bins.upper_epsilon(*arguments))[0] <= DELTA


@pytest.mark.parametrize(
    ("epsilon", "present", "standard_error", "absent"),
    [
        (0.5, 0.08713, 7.0e-4, 0.08058),
        (0.9, 0.02952, 4.1e-4, 0.02317),
        (1.2, 0.01107, 2.5e-4, 0.00697),
    ],
)
def test_pair_agrees_with_jax_privacy(epsilon, present, standard_error, absent):
    """Means of 60,000 privacy losses of jax_privacy 2.0.0 a direction, seed 7."""
    error = 4 * standard_error
    pair = importance_sampling.Pair(unit_encoder(8, 4), 8, 1e-2)
    low, high = pair.present(epsilon)
    assert low - error <= present <= high + error
    assert absent - error <= pair.absent(epsilon) <= 1.2 * absent
    more_bands = importance_sampling.Pair(unit_encoder(8, 5), 8, 1e-2)
    assert more_bands.present(epsilon)[0] > present + error


def test_bracket_of_forty_rounds_by_simulation():
    """E_P (1 - e^eps / f)+ at both ends: 400,000 draws; six standard errors, false
    alarm 1e-8.
    """
    encoder = square_root_encoder(40) / 1.5
    rounds = 40
    delta = 1e-2
    low, high = bracket(encoder, rounds, delta)
    rng = np.random.default_rng(4)
    columns = encoder.T[rng.integers(rounds, size=400_000)]
    releases = columns + rng.standard_normal((400_000, rounds))
    squares = (encoder**2).sum(axis=0)
    ratio = np.exp(releases @ encoder - squares / 2).mean(axis=1)
    for epsilon, sign in ((low, 1), (high, -1)):
        gains = np.maximum(1 - math.exp(epsilon) / ratio, 0.0)
        standard_error = gains.std() / len(gains) ** 0.5
        assert sign * (gains.mean() - delta) > -6 * standard_error
    assert low < high < 1.03 * low


@pytest.mark.parametrize(
    "encoder",
    [
        square_root_encoder(12),
        unit_encoder(12, 3),
        np.abs(np.random.default_rng(1).normal(size=(9, 9))),
    ],
)
def test_chain_is_nowhere_below_the_overlaps(encoder):
    gram = encoder.T @ encoder
    for common in (0.0, float(gram.min()), float(np.median(gram))):
        chain = importance_sampling._Chain.over(gram, common)
        for column in range(len(gram) - 1):
            factors = [chain.start[column], *chain.keep[column + 2 : len(gram)]]
            bounds = common + np.cumprod(factors)
            assert (bounds >= gram[column + 1 :, column] * (1 - 1e-9)).all()


@pytest.mark.parametrize("rounds", [2, 3])
def test_counts_have_the_total_of_all_tuples(rounds):
    """Order 3: the sum over all tuples of rounds; a third round was not run."""
    gram = np.array([[0.5, 0.2], [0.2, 0.7]])
    squares = np.diag(gram)

    def energies_of(counts):
        return (((counts @ gram) * counts).sum(axis=1) - counts @ squares) / 2

    tuples = np.array(list(itertools.product(range(rounds), repeat=3)))
    counts = np.stack([(tuples == index).sum(axis=1) for index in (0, 1)], axis=1)
    total = np.exp(energies_of(counts)).mean()
    chain = importance_sampling._Chain.over(gram, 0.0)
    law = importance_sampling._Counts(chain, squares, rounds, 3)
    assert math.log(total) <= law.log_total <= math.log(total) + 0.02
    counts, energies = law.draw(2000, np.random.default_rng(0))
    assert (counts.sum(axis=1) <= 3).all()
    assert rounds == 3 or (counts.sum(axis=1) == 3).all()
    assert (energies >= energies_of(counts) - 1e-9).all()


@pytest.mark.parametrize(("size", "failure"), [(60, 0.1), (5000, 1e-3)])
def test_bernstein_bounds_fail_no_oftener_than_stated(size, failure):
    """Coin throws: the chance of each failure, summed over all outcomes."""
    ends = [
        importance_sampling._bernstein(np.arange(size) < heads, 1.0, failure)
        for heads in range(size + 1)
    ]
    for chance in (0.02, 0.1, 0.3, 0.7):
        law = binom.pmf(np.arange(size + 1), size, chance)
        assert law @ [high < chance for _, high in ends] <= failure
        assert law @ [low > chance for low, _ in ends] <= failure
