"""Several units at once: group bounds against the Gaussian, laws of counts by hand,
draws that are told.
"""

import itertools
import math

import numpy as np
import pytest

from dpsum.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpsum.accounting.groups import (
    group_epsilon,
    known_draws_epsilon,
    squares_of_a_multinomial,
    squares_of_binomials,
)


@pytest.mark.parametrize(("z", "size"), [(4.0, 2), (8.0, 3), (20.0, 10)])
def test_one_after_another_is_never_below_the_group_itself(z, size):
    """Of a Gaussian the group is known: multiplier z / k. The bound is above it, and
    not by much where epsilon is.
    """
    found = group_epsilon(lambda delta: gaussian_epsilon(z, delta), size, 1e-6)
    exact = gaussian_epsilon(z / size, 1e-6)
    assert exact <= found <= 2 * exact
    assert group_epsilon(
        lambda delta: gaussian_epsilon(z, delta), 1, 1e-6
    ) == gaussian_epsilon(z, 1e-6)


def test_the_bound_is_the_statement_it_is_named_after():
    """k eps_1 with delta_1 (1 + ... + e^((k-1) eps_1)) <= delta, for the eps_1 and
    delta_1 that it asked for.
    """
    asked = []

    def epsilon_at(delta):
        asked.append((delta, gaussian_epsilon(6.0, delta)))
        return asked[-1][1]

    found = group_epsilon(epsilon_at, 3, 1e-5)
    delta, epsilon = asked[-1]
    assert found == 3 * epsilon
    assert 0.5e-5 < delta * sum(math.exp(i * epsilon) for i in range(3)) <= 1e-5


def test_it_gives_up_where_it_leads_nowhere():
    assert (
        group_epsilon(lambda delta: gaussian_epsilon(0.5, delta), 50, 1e-6) == math.inf
    )
    assert (
        group_epsilon(lambda delta: gaussian_epsilon(0.5, delta), 50, 1e-6, ceiling=7.0)
        == 7.0
    )


def law_by_hand(draws):
    found = {}
    for probability, counts in draws:
        square = sum(count * count for count in counts)
        found[square] = found.get(square, 0.0) + probability
    return found


def test_squares_of_counts_by_hand():
    """k = 3 clients, T = 2 rounds."""
    q, one = 0.3, [math.comb(3, n) * 0.3**n * 0.7 ** (3 - n) for n in range(4)]
    wanted = law_by_hand((one[a] * one[b], (a, b)) for a in range(4) for b in range(4))
    law, missing = squares_of_binomials(3, q, 2)
    assert missing <= 1e-12
    assert all(
        law[square] == pytest.approx(value, rel=1e-9)
        for square, value in wanted.items()
    )
    assert law.sum() == pytest.approx(1.0, rel=1e-12)


def test_squares_of_a_multinomial_are_an_upper_end():
    """4 balls in 3 bins, 2 of which were released: all 81 draws."""
    draws = itertools.product(range(3), repeat=4)
    wanted = law_by_hand(
        (1 / 81, [row.count(bin) for bin in range(2)]) for row in draws
    )
    law, _ = squares_of_a_multinomial(4, 3, 2)
    assert all(law[square] >= value for square, value in wanted.items())
    # Their conditions' probability is all that is lost: the bound is at most that
    # factor too high.
    factor = 1 / (math.exp(-4) * 4**4 / 24)
    assert law.sum() == pytest.approx(factor, rel=0.05)


def test_draws_that_are_told_are_a_mean_of_gaussians():
    law = np.array([0.2, 0.5, 0.0, 0.0, 0.3])  # the sum of squares is 0, 1 or 4
    found = known_draws_epsilon(law, 0.0, 2.0, 1e-5)
    mean = 0.5 * gaussian_delta(2.0, found) + 0.3 * gaussian_delta(1.0, found)
    assert mean == pytest.approx(1e-5, rel=1e-6)
    assert known_draws_epsilon(np.array([0.0, 1.0]), 0.0, 2.0, 1e-5) == pytest.approx(
        gaussian_epsilon(2.0, 1e-5)
    )
    assert known_draws_epsilon(np.array([1.0]), 0.0, 2.0, 1e-5) == 0.0
    assert known_draws_epsilon(law, 2e-5, 2.0, 1e-5) == math.inf
