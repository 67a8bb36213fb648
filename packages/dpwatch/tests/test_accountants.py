"""Fixed draws and secret batches: integrals, known events and one Gaussian."""

import functools
import math

import numpy as np
import pytest
from closed_forms import positive_root
from ledgers import make_release
from scipy.stats import binom, norm

from dploss.gaussian import gaussian_delta, gaussian_epsilon
from dpsum.accounting import analyses
from dpsum.accounting.account import account
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import fixed_size, poisson
from dpwatch.accountants.fixed_draws import lower_epsilon, upper_epsilon
from dpwatch.accountants.secret_batches import secret_batches

DELTA = 1e-5


def gaussian(z, delta=DELTA):
    return pytest.approx(gaussian_epsilon(z, delta), rel=1e-9)


# Cohorts drawn with replacement


@functools.cache
def epsilon_of_one_round(z, units, draws, unit, changed, others):
    """Return epsilon of both orders on a grid: a unit contributes or is changed, beside
    others.
    """
    counts = np.arange(draws + 1)
    chances = binom.pmf(counts, draws, 1 / units)
    x = np.linspace(-draws - 14 * z, draws + 14 * z, 200_001)

    def density(contribution):
        means = (draws - counts) * others + counts * contribution
        laws = (norm.pdf(x, mean, z) for mean in means)
        return sum(chance * law for chance, law in zip(chances, laws, strict=True))

    def epsilon(first, second):
        def excess(value):
            gains = np.maximum(first - math.exp(value) * second, 0.0)
            return float(gains.sum() * (x[1] - x[0])) - DELTA

        return positive_root(excess)

    densities = density(unit), density(changed)
    return max(epsilon(*densities), epsilon(*reversed(densities)))


@pytest.mark.parametrize("round_", [(1.0, 50, 10), (2.0, 5, 5), (1.5, 200, 6)])
def test_fixed_draws_high_end_is_above_every_data_set(round_):
    """The worst data set reaches most of the bound."""
    z, units, draws = round_
    worst = max(epsilon_of_one_round(*round_, 1, 0, change) for change in (-1, 1, 0))
    assert worst < upper_epsilon(((z, 1),), units, draws, DELTA) < 2.2 * worst
    worst = epsilon_of_one_round(*round_, 1, -1, -1)
    high = upper_epsilon(((z, 1),), units, draws, DELTA, fixed_size.REPLACE_ONE)
    assert worst < high < 2.2 * worst


def test_fixed_draws_low_end_is_that_of_one_data_set():
    expected = epsilon_of_one_round(1.0, 50, 10, 1, 0, 0)
    low = lower_epsilon(((1.0, 1),), 50, 10, DELTA)
    assert low == pytest.approx(expected, rel=5e-3)
    expected = epsilon_of_one_round(2.0, 50, 10, 1, -1, -1)
    low = lower_epsilon(((2.0, 1),), 50, 10, DELTA, fixed_size.REPLACE_ONE)
    assert low == pytest.approx(expected, rel=5e-3)


def test_fixed_draws_of_one_draw_is_a_fixed_size_of_one():
    expected = fixed_size.upper_epsilon(((1.0, 5),), 1 / 20, DELTA)
    assert upper_epsilon(((1.0, 5),), 20, 1, DELTA) == pytest.approx(expected, rel=1e-6)


def test_fixed_draws_of_the_only_unit_are_one_gaussian():
    """Four draws of one unit in three rounds: z / (4 sqrt(3))."""
    z = 10.0 / (4 * math.sqrt(3))
    schedule = ((10.0, 3),)
    high = upper_epsilon(schedule, 1, 4, DELTA)
    assert high == pytest.approx(gaussian_epsilon(z, DELTA), rel=1e-6)
    assert lower_epsilon(schedule, 1, 4, DELTA) == gaussian(z)
    sampler = {"kind": "fixed-draws", "clients": 1, "cohort": 4, "rounds": 3, "rate": 4}
    events = Events.planned(schedule, sampler)
    accountant = analyses.find("gaussian", "fixed-draws")
    assert accountant.bracket(events, DELTA)[1] == gaussian(z)
    assert accountant.replaced(events, DELTA) == (gaussian(z / 2), gaussian(z / 2))


# Secret shuffled epochs


def profiles_of(multipliers):
    """Return the profiles of ten rounds of two epochs, at delta = 1e-6."""
    sampler = {"kind": "shuffled-epochs", "epoch": 5, "batches": "secret"}
    sampler |= {"clients": 100, "cohort": 20, "rounds": 10, "rate": 0.2}
    releases = [
        make_release(round=index, z=z, sampler=sampler)
        for index, z in enumerate(multipliers)
    ]
    return account(releases, delta=1e-6, claims={}).profiles


def test_secret_batches_are_below_known_ones_and_not_far_below():
    """The low end is of the greatest noise, the high end of the least."""
    profiles = profiles_of([2.0] * 10)
    low = profiles["proven"].epsilon_low
    high = profiles["proven"].epsilon_high
    assert 0.1 * high < low < high == gaussian(2.0 / 2**0.5, 1e-6)
    assert profiles["replace_one"].epsilon_high == gaussian(1.0 / 2**0.5, 1e-6)
    varied = profiles_of([1.0] * 5 + [2.0] * 5)["proven"]
    assert varied.epsilon_low == pytest.approx(low, rel=1e-9)
    assert varied.epsilon_high == gaussian(1.0 / 2**0.5, 1e-6)


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
    low = secret_batches(z, 1 / epoch, epoch, epoch, 1e-6)
    assert float(np.max(first - math.exp(low + 5e-3) * second)) < 1e-6
    assert gaussian_delta(z, low) > 1e-6
    assert low > poisson.upper_epsilon(((z, epoch),), 1 / epoch, 1e-6)


def test_part_of_a_secret_epoch_is_one_round_of_a_fixed_size():
    exact = fixed_size.upper_epsilon(((1.0, 1),), 0.1, DELTA)
    assert 0.98 * exact < secret_batches(1.0, 0.1, 10, 1, DELTA) <= exact


def test_two_secret_epochs_of_two_rounds_by_quadrature():
    """The unit 1 and all others -1. One epoch's pair is (N(2, 0) + N(0, 2)) / 2 against
    (N(1, 0) + N(0, 1)) / 2. Its loss is put on a fine grid and composed with itself by
    a double sum, right to 1e-3 of epsilon.
    """
    z = 1.5
    delta = 1e-3
    step = 2e-3
    line = np.linspace(-9, 11, 801)
    x, y = np.meshgrid(line, line)
    cell = (line[1] - line[0]) ** 2 / (2 * math.pi * z**2)

    def mixture(mean):
        squares = (x - mean) ** 2 + y**2, x**2 + (y - mean) ** 2
        return cell * sum(np.exp(-square / (2 * z**2)) for square in squares) / 2

    first = mixture(2.0)
    second = mixture(1.0)
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
