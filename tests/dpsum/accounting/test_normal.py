"""Tails of the normal, of the log-normal and of a round's loss against mpmath: within
the error that is stated.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from dpsum.accounting.analyses import balls_and_bins
from dpsum.accounting.gaussian import upper_tail
from dpsum.accounting.round_loss import RoundLoss

mpmath.mp.dps = 60


def exact_tail(at):
    """P(N > at), 60 digits."""
    return mpmath.erfc(at / mpmath.sqrt(2)) / 2


def shares_off(found, exact):
    """By how much of the exact values those found are off."""
    return np.array(
        [
            float(abs((mpmath.mpf(float(one)) - true) / true))
            for one, true in zip(found, exact, strict=True)
        ]
    )


@pytest.mark.parametrize(
    ("low", "high"), [(-8, 0), (0, 1), (1, 2), (2, 8), (8, 20), (20, 37)]
)
def test_a_tail_is_within_its_stated_error(low, high):
    at = np.random.default_rng(0).uniform(low, high, 400)
    found, error = upper_tail(at)
    off = shares_off(found, [exact_tail(mpmath.mpf(float(x))) for x in at])
    assert (off <= error).all() and error.max() < 5e-13
    assert (found == ndtr(-at)).all()


def test_no_fixed_margin_of_1e_14_is_enough_far_out():
    at = np.linspace(20, 37, 200)
    off = shares_off(ndtr(-at), [exact_tail(mpmath.mpf(float(x))) for x in at])
    assert off.max() > 1e-13


def test_a_place_that_is_off_moves_the_tail_by_no_more_than_is_said():
    at, off = np.linspace(-3, 30, 50), 1e-7
    found, error = upper_tail(at, off)
    for moved in (at - off, at + off):
        exact = [exact_tail(mpmath.mpf(float(x))) for x in moved]
        assert (shares_off(found, exact) <= error).all()


def test_tails_that_are_certain_have_no_error():
    found, error = upper_tail(np.array([-np.inf, np.inf]), 1.0)
    assert found.tolist() == [1.0, 0.0] and error.max() < 1e-14


@pytest.mark.parametrize("z", [0.06, 0.3, 1.0, 7.0])
def test_the_log_normals_tail_and_moment(z):
    """P(X > a) and E X 1{X > a} of log X ~ N(-1/(2 z^2), 1/z^2): normal tails at z log
    a +- 1/(2 z).
    """
    law = balls_and_bins._LogNormal(s=1.0 / z)
    at = law.cut(
        10.0 ** -np.random.default_rng(0).uniform(0.01, 25, 200).min()
    ) * np.geomspace(1e-6, 1.0, 300)
    exact_z = mpmath.mpf(z)
    for (found, error), sign in ((law.tail(at), 1), (law.moment(at), -1)):
        exact = [
            exact_tail(
                exact_z * mpmath.log(mpmath.mpf(float(a))) + sign / (2 * exact_z)
            )
            for a in at
        ]
        assert (shares_off(found, exact) <= error).all()
        assert error.max() < 1e-11


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(
    ("z", "rate", "uses"),
    [(0.25, 0.3, 1), (1.0, 0.01, 1), (3.0, 1e-4, 1), (1.0, 0.025, 5), (0.5, 0.3, 2)],
)
def test_the_tails_of_a_rounds_loss(z, rate, uses, add):
    """With x the place of a loss, P's and Q's mass beyond it: by bisection and the
    definition, 60 digits.
    """
    law = RoundLoss(z, rate, add, uses, 0.0)
    low, high = law.range(1e-20)
    inside = np.linspace(low, high, 42)[1:-1]
    losses = np.concatenate(
        [
            inside,
            (high if add else low) + (-1 if add else 1) * np.geomspace(1e-12, 1e-3, 10),
        ]
    )
    first, second, error = law.tails(losses)
    q, exact_z = mpmath.mpf(rate), mpmath.mpf(z)
    chances = [
        mpmath.binomial(uses, n) * q**n * (1 - q) ** (uses - n) for n in range(uses + 1)
    ]

    def rises(x):
        """(dP/dQ)(x) less its least."""
        return sum(
            p * mpmath.exp((n * x - mpmath.mpf(n * n) / 2) / exact_z**2)
            for n, p in enumerate(chances)
            if n
        )

    for loss, *found, share in zip(losses, first, second, error, strict=True):
        wanted = mpmath.exp(mpmath.mpf(float(-loss if add else loss))) - chances[0]
        if wanted <= 0:
            continue
        left, right = (
            mpmath.mpf(-400) * exact_z**2 - 400,
            mpmath.mpf(400) * exact_z**2 + 400,
        )
        for _ in range(230):
            middle = (left + right) / 2
            left, right = (middle, right) if rises(middle) < wanted else (left, middle)
        sign = -1 if add else 1
        of_q = exact_tail(sign * left / exact_z)
        of_p = sum(
            p * exact_tail(sign * (left - n) / exact_z) for n, p in enumerate(chances)
        )
        for one, exact in zip(
            found, (of_q, of_p) if add else (of_p, of_q), strict=True
        ):
            if exact > 1e-290:
                assert abs(mpmath.mpf(float(one)) - exact) <= share * exact, (
                    loss,
                    share,
                )
    assert np.median(error) < 1e-11 and not math.isnan(error.max())
