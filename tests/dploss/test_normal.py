"""Tails of the normal, of the log-normal and of a round's loss against mpmath: within
the error that is stated.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from dploss.gaussian import upper_tail
from dploss.round_loss import RoundLoss
from dpsum.accounting.analyses import balls_and_bins

mpmath.mp.dps = 60


def exact_tail(position):
    """Return P(N > position) in 60 digits."""
    return mpmath.erfc(mpmath.mpf(position) / mpmath.sqrt(2)) / 2


def relative_errors(values, exact_values):
    return np.array(
        [
            float(abs((mpmath.mpf(float(value)) - exact) / exact))
            for value, exact in zip(values, exact_values, strict=True)
        ]
    )


@pytest.mark.parametrize(("low", "high"), [(-8, 0), (0, 2), (2, 8), (8, 20), (20, 37)])
def test_upper_tail_is_within_its_stated_error(low, high):
    positions = np.random.default_rng(0).uniform(low, high, 400)
    tails, stated = upper_tail(positions)
    errors = relative_errors(tails, map(exact_tail, positions))
    assert (errors <= stated).all()
    assert stated.max() < 5e-13
    assert (tails == ndtr(-positions)).all()


def test_upper_tail_needs_more_than_a_fixed_margin_far_out():
    positions = np.linspace(20, 37, 200)
    errors = relative_errors(ndtr(-positions), map(exact_tail, positions))
    assert errors.max() > 1e-13


def test_upper_tail_states_the_error_of_a_place_that_is_off():
    positions, offset = np.linspace(-3, 30, 50), 1e-7
    tails, stated = upper_tail(positions, offset)
    for moved in (positions - offset, positions + offset):
        assert (relative_errors(tails, map(exact_tail, moved)) <= stated).all()


def test_upper_tail_of_a_certain_event_has_no_error():
    tails, stated = upper_tail(np.array([-np.inf, np.inf]), 1.0)
    assert tails.tolist() == [1.0, 0.0]
    assert stated.max() < 1e-14


@pytest.mark.parametrize("z", [0.06, 0.3, 1.0, 7.0])
def test_log_normal_tail_and_moment_are_within_their_stated_error(z):
    """P(X > a) and E X 1{X > a} of log X ~ N(-1/(2 z^2), 1/z^2): normal tails at z log
    a +- 1/(2 z).
    """
    law = balls_and_bins._LogNormal(s=1.0 / z)
    least_mass = 10.0 ** -np.random.default_rng(0).uniform(0.01, 25, 200).min()
    positions = law.cut(least_mass) * np.geomspace(1e-6, 1.0, 300)
    exact_z = mpmath.mpf(z)
    for (values, stated), sign in (
        (law.tail(positions), 1),
        (law.moment(positions), -1),
    ):
        exact_values = [
            exact_tail(
                exact_z * mpmath.log(mpmath.mpf(position)) + sign / (2 * exact_z)
            )
            for position in map(float, positions)
        ]
        assert (relative_errors(values, exact_values) <= stated).all()
        assert stated.max() < 1e-11


def position_of_ratio(z, chances, ratio):
    """Return x at which sum_n chances[n] e^((n x - n^2 / 2) / z^2) is a ratio."""

    def ratio_at(x):
        return sum(
            chance * mpmath.exp((n * x - mpmath.mpf(n * n) / 2) / z**2)
            for n, chance in enumerate(chances)
        )

    reach = mpmath.mpf(400) * z**2 + 400
    low, high = -reach, reach
    for _ in range(230):
        middle = (low + high) / 2
        if ratio_at(middle) < ratio:
            low = middle
        else:
            high = middle
    return low


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(
    ("z", "rate", "uses"),
    [(0.25, 0.3, 1), (1.0, 0.01, 1), (3.0, 1e-4, 1), (1.0, 0.025, 5), (0.5, 0.3, 2)],
)
def test_round_loss_tails_are_within_their_stated_error(z, rate, uses, add):
    """P's and Q's mass beyond a loss, by bisection and the definition in 60 digits."""
    law = RoundLoss(z, rate, add, uses, 0.0)
    low, high = law.range(1e-20)
    offsets = np.geomspace(1e-12, 1e-3, 10)
    near_end = high - offsets if add else low + offsets
    losses = np.concatenate([np.linspace(low, high, 42)[1:-1], near_end])
    first, second, stated = law.tails(losses)
    exact_z, q = mpmath.mpf(z), mpmath.mpf(rate)
    chances = [
        mpmath.binomial(uses, n) * q**n * (1 - q) ** (uses - n) for n in range(uses + 1)
    ]
    sign = -1 if add else 1
    for index, loss in enumerate(losses):
        ratio = mpmath.exp(mpmath.mpf(float(sign * loss)))
        if ratio <= chances[0]:
            continue
        position = position_of_ratio(exact_z, chances, ratio)
        absent = exact_tail(sign * position / exact_z)
        present = sum(
            chance * exact_tail(sign * (position - n) / exact_z)
            for n, chance in enumerate(chances)
        )
        exact_first, exact_second = (absent, present) if add else (present, absent)
        for value, exact in (
            (first[index], exact_first),
            (second[index], exact_second),
        ):
            error = abs(mpmath.mpf(float(value)) - exact)
            assert exact <= 1e-290 or error <= stated[index] * exact, loss
    assert np.median(stated) < 1e-11
    assert not math.isnan(stated.max())
