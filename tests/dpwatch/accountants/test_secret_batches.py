"""Secret shuffled epochs: an event of known probability, one round, and quadrature."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dploss.gaussian import gaussian_delta, gaussian_epsilon
from dpsum.accounting.account import account
from dpsum.accounting.analyses import fixed_size, poisson
from dpwatch.accountants.secret_batches import secret_batches
from tests.dpsum.helpers import make_release

DELTA = 1e-6
SAMPLER = {
    "kind": "shuffled-epochs",
    "clients": 100,
    "cohort": 20,
    "rounds": 10,
    "rate": 0.2,
    "epoch": 5,
    "batches": "secret",
}


def profiles_of(multipliers):
    """Return the profiles of ten rounds of two epochs."""
    releases = [
        make_release(round=index, z=z, sampler=SAMPLER)
        for index, z in enumerate(multipliers)
    ]
    return account(releases, delta=DELTA, claims={}).profiles


def gaussian(z):
    return pytest.approx(gaussian_epsilon(z, DELTA), rel=1e-9)


def test_secret_batches_are_below_known_ones_and_not_far_below():
    """The low end is of the greatest noise, the high end of the least."""
    profiles = profiles_of([2.0] * 10)
    low, high = profiles["proven"].epsilon_low, profiles["proven"].epsilon_high
    assert 0.1 * high < low < high == gaussian(2.0 / 2**0.5)
    assert profiles["replace_one"].epsilon_high == gaussian(1.0 / 2**0.5)
    varied = profiles_of([1.0] * 5 + [2.0] * 5)["proven"]
    assert varied.epsilon_low == pytest.approx(low, rel=1e-9)
    assert varied.epsilon_high == gaussian(1.0 / 2**0.5)


@pytest.mark.parametrize(("z", "epoch"), [(1.0, 250), (2.0, 250), (1.0, 10)])
def test_one_secret_epoch_is_at_least_the_event_of_one_large_sum(z, epoch):
    """Chua et al. (2024): P and Q of the largest of T sums being above c, by their
    product formula, at the best c. It is above Poisson's account at the same rate.
    """
    cuts = np.linspace(-6 * z, 2 + 12 * z, 40_001)
    log_others = (epoch - 1) * norm.logcdf(cuts / z)
    first, second = (
        -np.expm1(norm.logcdf((cuts - mean) / z) + log_others) for mean in (2.0, 1.0)
    )
    low = secret_batches(z, 1 / epoch, epoch, epoch, DELTA)
    assert float(np.max(first - math.exp(low + 5e-3) * second)) < DELTA
    assert gaussian_delta(z, low) > DELTA
    assert low > poisson.upper_epsilon(((z, epoch),), 1 / epoch, DELTA)


def test_part_of_a_secret_epoch_is_one_round_of_a_fixed_size():
    exact = fixed_size.upper_epsilon(((1.0, 1),), 0.1, 1e-5)
    assert 0.98 * exact < secret_batches(1.0, 0.1, 10, 1, 1e-5) <= exact


def test_two_secret_epochs_of_two_rounds_by_quadrature():
    """The unit 1 and all others -1. One epoch's pair is (N(2, 0) + N(0, 2)) / 2 against
    (N(1, 0) + N(0, 1)) / 2. Its loss is put on a fine grid and composed with itself by
    a double sum, right to 1e-3 of epsilon.
    """
    z, delta, step = 1.5, 1e-3, 2e-3
    line = np.linspace(-9, 11, 801)
    x, y = np.meshgrid(line, line)
    cell = (line[1] - line[0]) ** 2 / (2 * math.pi * z**2)

    def mixture(mean):
        squares = (x - mean) ** 2 + y**2, x**2 + (y - mean) ** 2
        return cell * sum(np.exp(-square / (2 * z**2)) for square in squares) / 2

    first, second = mixture(2.0), mixture(1.0)
    cells = np.rint(np.log(first / second) / step).astype(int).ravel()
    least = cells.min()
    law = np.bincount(cells - least, first.ravel())
    composed = np.convolve(law, law)
    losses = (2 * least + np.arange(len(composed))) * step

    def delta_at(epsilon):
        return float((composed * np.maximum(-np.expm1(epsilon - losses), 0.0)).sum())

    low = secret_batches(z, 0.5, 2, 4, delta)
    high = gaussian_epsilon(z / 2**0.5, delta)
    assert delta_at(high) < delta < delta_at(low + 2e-3)
    assert delta_at(1.3 * low) < delta
