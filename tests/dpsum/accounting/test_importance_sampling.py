"""Correlated noise in secret rounds by draws: exact values, balls-and-bins, a plain
simulation, and planted faults.
"""

import math

import numpy as np
import pytest
from scipy.stats import binom

from dpsum import factorisations
from dpsum.accounting import importance_sampling
from dpsum.accounting.analyses import balls_and_bins
from dpsum.accounting.analyses import correlated_balls_and_bins as correlated_bins
from tests.dpsum.accounting.test_correlated_bins import banded, exact, grid, ratio

DELTA = 1e-4


def square_root(rounds):
    return np.abs(np.linalg.inv(factorisations.square_root(rounds)))


@pytest.mark.parametrize("z", [0.7, 1.5, 4.0])
@pytest.mark.parametrize(("rounds", "bands"), [(2, 2), (3, 2), (3, 3)])
def test_two_and_three_rounds_are_a_quadrature(rounds, bands, z):
    """Epsilon, and delta of either direction; no column of the encoder has another's
    norm.
    """
    encoder = banded(rounds, bands)
    points, chances = grid(rounds, z)
    f = ratio(encoder, z, points)
    found = exact(f, chances)
    low, high = importance_sampling.bracket(encoder / z, rounds, DELTA)
    assert low <= found + 2e-4 and found <= high + 2e-4  # of the grid's summation
    assert high < 1.04 * low
    pair = importance_sampling.Pair(encoder / z, rounds, DELTA)
    for epsilon in (0.7 * found, found):
        least, most = pair.present(epsilon)
        present = float(chances @ np.maximum(f - math.exp(epsilon), 0.0))
        absent = float(chances @ np.maximum(1 - math.exp(epsilon) * f, 0.0))
        off = 1e-2 * DELTA  # of the grid's summation
        assert least - off <= present <= most + off
        assert absent <= pair.absent(epsilon) + off
    if z > 1:
        # Faults: the ends are sharp enough to tell one band, one round of the draw, or
        # one noise from another.
        fewer, longer, less = (
            banded(rounds, bands - 1) / z,
            (encoder / z, rounds + 1),
            encoder / (1.05 * z),
        )
        for wrong in ((fewer, rounds), longer, (less, rounds)):
            assert importance_sampling.bracket(*wrong, DELTA)[1] < low


def test_a_run_that_was_stopped():
    """Two of three rounds: the quadrature of two, with a third of a chance of having
    been in neither.
    """
    encoder, z = banded(3, 3), 1.0
    points, chances = grid(2, z)
    f = (2 * ratio(encoder[:2, :2], z, points) + 1) / 3
    low, high = importance_sampling.bracket(encoder[:2, :2] / z, 3, DELTA)
    assert low <= exact(f, chances) + 2e-4 and exact(f, chances) <= high + 2e-4
    assert high < 1.03 * low


def test_without_correlation_the_end_of_presence_is_balls_and_bins():
    z, rounds = 1.5, 30
    pair = importance_sampling.Pair(np.eye(rounds) / z, rounds, DELTA)
    truth = (
        balls_and_bins.lower_epsilon(z, rounds, rounds, DELTA),
        balls_and_bins.upper_epsilon(z, rounds, rounds, DELTA),
    )
    least, most = pair.present(truth[0])
    assert most >= DELTA and pair.present(truth[1])[0] <= DELTA
    assert least > 0.85 * DELTA and most < 1.15 * DELTA


@pytest.mark.parametrize(
    ("epsilon", "present", "off", "absent"),
    [
        (0.5, 0.08713, 7.0e-4, 0.08058),
        (0.9, 0.02952, 4.1e-4, 0.02317),
        (1.2, 0.01107, 2.5e-4, 0.00697),
    ],
)
def test_jax_privacy_draws_the_same(epsilon, present, off, absent):
    """Means of 60,000 privacy losses of jax_privacy 2.0.0 a direction, seed 7 (`off`:
    one standard error, of four).
    """
    encoder = banded(8, 4)
    pair = importance_sampling.Pair(encoder, 8, 1e-2)
    low, high = pair.present(epsilon)
    assert low - 4 * off <= present <= high + 4 * off
    assert absent - 4 * off <= pair.absent(epsilon) <= 1.2 * absent
    assert (
        importance_sampling.Pair(banded(8, 5), 8, 1e-2).present(epsilon)[0]
        > present + 4 * off
    )  # a band more


def test_forty_rounds_are_a_plain_simulation():
    """E_P (1 - e^eps / f)+ at both ends: 400,000 draws, seed 4; six standard errors
    (false alarm 1e-8).
    """
    encoder, rounds, delta = square_root(40) / 1.5, 40, 1e-2
    low, high = importance_sampling.bracket(encoder, rounds, delta)
    rng = np.random.default_rng(4)
    y = encoder.T[rng.integers(rounds, size=400_000)] + rng.standard_normal(
        (400_000, rounds)
    )
    f = np.exp(y @ encoder - (encoder**2).sum(axis=0) / 2).mean(axis=1)
    for epsilon, side in ((low, 1), (high, -1)):
        values = np.maximum(1 - math.exp(epsilon) / f, 0.0)
        assert side * (values.mean() - delta) > -6 * values.std() / len(values) ** 0.5
    assert low < high < 1.03 * low
    # Far below what the observer who is told residues of the round would have.
    gram = encoder.T @ encoder
    told = correlated_bins.upper_epsilon(
        correlated_bins.overlaps(gram), rounds, rounds, delta
    )
    assert high < 0.9 * told


@pytest.mark.parametrize(
    "encoder",
    [
        square_root(12),
        banded(12, 3),
        np.abs(np.random.default_rng(1).normal(size=(9, 9))),
    ],
)
def test_the_chain_is_nowhere_below_the_overlaps(encoder):
    gram = encoder.T @ encoder
    for common in (0.0, float(gram.min()), float(np.median(gram))):
        chain = importance_sampling._Chain.over(gram, common)
        for column in range(len(gram)):
            value = chain.start[column]
            for row in range(column + 1, len(gram)):
                value = value if row == column + 1 else value * chain.keep[row]
                assert common + value >= gram[row, column] * (1 - 1e-9)


def test_total_weights_are_renyi_divergences_of_whole_order():
    """Two rounds, order 3: the sum over all eight tuples; with a third round that was
    not run, over 27.
    """
    gram = np.array([[0.5, 0.2], [0.2, 0.7]])
    chain = importance_sampling._Chain.over(gram, 0.0)
    for rounds in (2, 3):
        total = 0.0
        for tuple_ in np.ndindex(rounds, rounds, rounds):
            n = np.bincount(tuple_, minlength=rounds)[:2]
            total += math.exp((n @ gram @ n - n @ np.diag(gram)) / 2) / rounds**3
        found = importance_sampling._Counts(chain, np.diag(gram), rounds, 3)
        assert (
            math.log(total) <= found.log_total <= math.log(total) + 0.02
        )  # fields are rounded up
        counts, energy = found.draw(2000, np.random.default_rng(0))
        assert (counts.sum(axis=1) <= 3).all() and (
            (counts.sum(axis=1) == 3).all() or rounds == 3
        )
        exact_energy = ((counts @ gram) * counts).sum(axis=1) / 2 - counts @ np.diag(
            gram
        ) / 2
        assert (energy >= exact_energy - 1e-9).all()


def test_bounds_of_a_mean_fail_as_seldom_as_they_say():
    """Coin throws: the chance of each failure, summed over all outcomes."""
    size, doubt = 60, 0.1
    ends = [
        importance_sampling._bernstein(np.arange(size) < heads, 1.0, doubt)
        for heads in range(size + 1)
    ]
    for chance in (0.02, 0.1, 0.3, 0.7):
        share = binom.pmf(np.arange(size + 1), size, chance)
        assert share @ [high < chance for _, high in ends] <= doubt
        assert share @ [low > chance for low, _ in ends] <= doubt
