"""Tails of the loss of one round against mpmath: within the error that is stated."""

import mpmath
import numpy as np
import pytest

from dploss.round_loss import RoundLoss
from tests.dploss.helpers import DIGITS, exact_tail


def position_of_ratio(z, chances, ratio):
    """Return x at which sum_n chances[n] e^((n x - n^2 / 2) / z^2) is a ratio."""

    def ratio_at(x):
        return sum(
            chance * mpmath.exp((n * x - mpmath.mpf(n * n) / 2) / z**2)
            for n, chance in enumerate(chances)
        )

    high = mpmath.mpf(400) * z**2 + 400
    low = -high
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
@mpmath.workdps(DIGITS)
def test_round_loss_tails_are_within_their_stated_error(z, rate, uses, add):
    """P's and Q's mass beyond a loss, by bisection and the definition in 60 digits."""
    law = RoundLoss(z, rate, add, uses, 0.0)
    low, high = law.range(1e-20)
    offsets = np.geomspace(1e-12, 1e-3, 10)
    near_end = high - offsets if add else low + offsets
    losses = np.concatenate([np.linspace(low, high, 42)[1:-1], near_end])
    first, second, stated = law.tails(losses)
    assert np.isfinite(stated).all()
    assert np.median(stated) < 1e-11
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
        tails = [exact_tail(sign * (position - n) / exact_z) for n in range(uses + 1)]
        present = sum(c * t for c, t in zip(chances, tails, strict=True))
        exact = (tails[0], present) if add else (present, tails[0])
        for value, expected in zip((first[index], second[index]), exact, strict=True):
            error = abs(mpmath.mpf(float(value)) - expected)
            assert expected <= 1e-290 or error <= stated[index] * expected, loss
