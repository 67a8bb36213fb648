"""Several units at once: group bounds, laws of squared counts, and known draws."""

import collections
import functools
import itertools
import math
from unittest import mock

import numpy as np
import pytest

from dploss.gaussian import gaussian_delta, gaussian_epsilon
from dploss.groups import (
    group_epsilon,
    known_draws_epsilon,
    squares_of_a_multinomial,
    squares_of_binomials,
    squares_of_hypergeometrics,
)


@pytest.mark.parametrize(("z", "size"), [(4.0, 2), (6.0, 3), (20.0, 10)])
def test_group_epsilon_is_k_times_epsilon_at_a_smaller_delta(z, size):
    """k eps_1 with delta_1 (1 + ... + e^((k-1) eps_1)) <= delta. A group of k is a
    Gaussian of multiplier z / k.
    """
    epsilon_at = mock.Mock(side_effect=functools.partial(gaussian_epsilon, z))
    bound = group_epsilon(epsilon_at, size, 1e-6)
    (delta,) = epsilon_at.call_args.args
    epsilon = gaussian_epsilon(z, delta)
    assert bound == size * epsilon
    assert 0.5e-6 < delta * sum(math.exp(i * epsilon) for i in range(size)) <= 1e-6
    exact = gaussian_epsilon(z / size, 1e-6)
    assert exact <= bound <= 2 * exact
    assert group_epsilon(epsilon_at, 1, 1e-6) == gaussian_epsilon(z, 1e-6)


def test_group_epsilon_is_its_ceiling_where_no_delta_is_left():
    epsilon_at = functools.partial(gaussian_epsilon, 0.5)
    assert group_epsilon(epsilon_at, 50, 1e-6) == math.inf
    assert group_epsilon(epsilon_at, 50, 1e-6, ceiling=7.0) == 7.0


def law_of_squares(draws):
    """Return the chance of each sum of squared counts, from (chance, counts)."""
    law = collections.Counter()
    for chance, counts in draws:
        law[sum(count * count for count in counts)] += chance
    return law


def test_squares_of_binomials_by_hand():
    """Three clients at q = 0.3, two rounds."""
    chances = [math.comb(3, n) * 0.3**n * 0.7 ** (3 - n) for n in range(4)]
    pairs = itertools.product(range(4), repeat=2)
    expected = law_of_squares((chances[a] * chances[b], (a, b)) for a, b in pairs)
    law, missing = squares_of_binomials(3, 0.3, 2)
    assert missing <= 1e-12
    assert {square: law[square] for square in expected} == pytest.approx(
        expected, rel=1e-9
    )
    assert law.sum() == pytest.approx(1.0, rel=1e-12)


def test_squares_of_hypergeometrics_by_hand():
    """All cohorts of 3 of 7 with 4 marked units, two rounds."""
    cohorts = itertools.combinations(range(7), 3)
    counts = [sum(unit < 4 for unit in cohort) for cohort in cohorts]
    pairs = itertools.product(counts, repeat=2)
    expected = law_of_squares((len(counts) ** -2, pair) for pair in pairs)
    law, missing = squares_of_hypergeometrics(4, 3, 7, 2)
    assert missing < 1e-10
    for square, chance in expected.items():
        assert law[square] == pytest.approx(chance, abs=1e-12)


def test_squares_of_a_multinomial_are_an_upper_end():
    """4 balls in 3 bins, 2 of them released: all 81 draws. The bound is at most the
    chance of its condition too high.
    """
    draws = itertools.product(range(3), repeat=4)
    expected = law_of_squares((1 / 81, [row.count(0), row.count(1)]) for row in draws)
    law, _ = squares_of_a_multinomial(4, 3, 2)
    assert all(law[square] >= chance for square, chance in expected.items())
    condition = math.exp(-4) * 4**4 / 24
    assert law.sum() == pytest.approx(1 / condition, rel=0.05)


def test_known_draws_are_a_mean_of_gaussians():
    """The sum of squares is 0, 1 or 4."""
    law = np.array([0.2, 0.5, 0.0, 0.0, 0.3])
    epsilon = known_draws_epsilon(law, 0.0, 2.0, 1e-5)
    mean = 0.5 * gaussian_delta(2.0, epsilon) + 0.3 * gaussian_delta(1.0, epsilon)
    assert mean == pytest.approx(1e-5, rel=1e-6)
    one_client = known_draws_epsilon(np.array([0.0, 1.0]), 0.0, 2.0, 1e-5)
    assert one_client == pytest.approx(gaussian_epsilon(2.0, 1e-5))
    assert known_draws_epsilon(np.array([1.0]), 0.0, 2.0, 1e-5) == 0.0
    assert known_draws_epsilon(law, 2e-5, 2.0, 1e-5) == math.inf
