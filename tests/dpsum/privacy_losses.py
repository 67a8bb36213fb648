"""Brute-force epsilon of small mechanisms: an oracle for accounts.

A `Loss` has the privacy losses of a pair of neighbours on a grid of outcomes, in both
orders. Mechanisms that run side by side convolve. No code of `dpsum` or `dploss` is
used.
"""

import functools
import math

import numpy as np
from scipy.signal import fftconvolve
from scipy.stats import norm

STEP = 1e-3
"""Width of a bin of losses. Each loss is rounded to the nearest bin."""

LARGEST = 40.0
"""Losses are cut to this size."""


class Loss:
    """Privacy losses of a pair of laws, in both orders.

    Args:
        orders: for each order the first bin and the probabilities, float64 [bins].
    """

    def __init__(self, orders):
        self.orders = orders

    @classmethod
    def of(cls, present, absent):
        """Return the losses of two laws on one grid of outcomes, float64 [n] each."""
        return cls([_binned(present, absent), _binned(absent, present)])

    def __add__(self, other):
        """Return the losses of two mechanisms that draw independently."""
        orders = []
        for (start, law), (other_start, other_law) in zip(
            self.orders, other.orders, strict=True
        ):
            orders.append((start + other_start, fftconvolve(law, other_law)))
        return Loss(orders)

    def epsilon(self, delta):
        """Return the least epsilon >= 0 at delta, in the worse order."""
        return max(_epsilon(start, law, delta) for start, law in self.orders)


def _binned(first, second):
    seen = (first > 0) & (second > 0)
    losses = np.log(first[seen] / second[seen])
    bins = np.rint(np.clip(losses, -LARGEST, LARGEST) / STEP).astype(int)
    start = int(bins.min())
    law = np.bincount(bins - start, weights=first[seen])
    return start, law


def _epsilon(start, law, delta):
    losses = (start + np.arange(len(law))) * STEP
    low, high = 0.0, LARGEST
    for _ in range(50):
        middle = (low + high) / 2
        above = losses > middle
        if np.sum(law[above] * -np.expm1(middle - losses[above])) > delta:
            low = middle
        else:
            high = middle
    return high


@functools.cache
def sampled(mu, rate=1.0):
    """Return the losses of (1 - q) N(0, 1) + q N(mu, 1) against N(0, 1)."""
    width = 1e-3
    x = np.arange(-9.0, mu + 9.0, width)
    absent = norm.pdf(x) * width
    present = (1 - rate) * absent + rate * norm.pdf(x - mu) * width
    return Loss.of(present, absent)


@functools.cache
def in_one_of_two_rounds(first, second):
    """Return the losses of a unit that is in one of two rounds, each with chance 1/2.

    Args:
        first, second: shift of both releases, in deviations of their noise, where the
            unit is in the first or in the second round: pairs of numbers.
    """
    width = 0.02
    reach = max(*first, *second) + 6.5
    axis = np.arange(-6.5, reach, width)
    cells = width**2
    absent = np.outer(norm.pdf(axis), norm.pdf(axis)) * cells
    present = np.zeros_like(absent)
    for one, other in (first, second):
        present += np.outer(norm.pdf(axis - one), norm.pdf(axis - other)) * cells / 2
    return Loss.of(present.ravel(), absent.ravel())


@functools.cache
def fixed_size_data_set(mu, rate):
    """Return the losses of one data set under fixed-size cohorts, one round.

    The others contribute -1 and the unit 1, or zero: (1 - q) N(0) + q N(2 mu) against
    (1 - q) N(0) + q N(mu). No account of fixed-size cohorts is below it.
    """
    width = 1e-3
    x = np.arange(-9.0, 2 * mu + 9.0, width)
    away = (1 - rate) * norm.pdf(x) * width
    present = away + rate * norm.pdf(x - 2 * mu) * width
    zeroed = away + rate * norm.pdf(x - mu) * width
    return Loss.of(present, zeroed)


def gaussian(*distances):
    """Return the losses of Gaussian releases at these distances, in deviations."""
    return sampled(math.hypot(*distances))
