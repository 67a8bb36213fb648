"""Fixed-size cohorts: quadrature over data sets and two rounds, and dp-accounting.

No expected value is from the code under test. Poisson's account at the same rate, and
one data set's pair for both halves of the dominating one, are rejected.
"""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import logsumexp
from scipy.stats import norm

from dploss import renyi
from dploss.fine_brackets import is_wide
from dploss.gaussian import gaussian_delta, gaussian_epsilon
from dpsum.accounting import analyses
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import fixed_size, poisson
from dpsum.accounting.calibration import epsilon_after
from dpsum.accounting.image_level import ImageUse
from tests.dpsum.accounting.helpers import bracket, positive_root, profiles_of
from tests.dpsum.helpers import make_releases

DELTA = 1e-5
ZERO_OUT = fixed_size.ZERO_OUT
REPLACE_ONE = fixed_size.REPLACE_ONE
COHORTS = {"clients": 500, "cohort": 50, "rounds": 10, "rate": 0.1}
SAMPLER = {"kind": "fixed-size", **COHORTS}


class DensityGrid:
    """Densities of releases with noise of deviation z, on a fine grid."""

    def __init__(self, z, points=60_001):
        self.z = z
        self.x = np.linspace(-13 * z - 8, 13 * z + 8, points)
        self.step = self.x[1] - self.x[0]

    def normal(self, mean):
        return norm.pdf(self.x, mean, self.z)

    def mixture(self, rate, mean):
        return (1 - rate) * self.normal(0.0) + rate * self.normal(mean)

    def mean_of_cohorts(self, values, size):
        """Return the mean over all cohorts of so many of the values."""
        cohorts = itertools.combinations(values, size)
        return np.mean([self.normal(sum(cohort)) for cohort in cohorts], axis=0)

    def delta(self, pair, epsilon):
        gains = np.maximum(pair[0] - math.exp(epsilon) * pair[1], 0.0)
        return float(gains.sum() * self.step)

    def epsilon(self, pair, delta):
        return positive_root(lambda epsilon: self.delta(pair, epsilon) - delta)


@pytest.mark.parametrize(
    ("z", "q"), [(0.5, 0.1), (1.0, 0.004), (1.0, 0.5), (3.0, 0.1), (8.0, 0.9)]
)
def test_fixed_size_of_one_round_is_a_quadrature(z, q):
    """Zero-out: the unit 1 and all others -1. Replace-one: Theorem 9 of Balle, Barthe
    and Gaboardi, (eps, delta) becomes (log(1 + q (e^eps - 1)), q delta).
    """
    grid = DensityGrid(z)
    pairs = (
        (grid.mixture(q, 2), grid.mixture(q, 1)),
        (grid.mixture(q, 1), grid.normal(0)),
    )
    exact = max(grid.epsilon(pair, DELTA) for pair in pairs)
    low, high = bracket(fixed_size, ((z, 1),), q, DELTA)
    assert low <= exact + 1e-6
    assert exact - 1e-6 <= high <= low + 2e-3
    exact = math.log1p(q * math.expm1(gaussian_epsilon(z / 2, DELTA / q)))
    low, high = bracket(fixed_size, ((z, 1),), q, DELTA, REPLACE_ONE)
    assert low <= exact <= high <= low + 2e-3


def test_fixed_size_deltas_bound_every_data_set_and_are_reached():
    """All cohorts of two of five units: 200 random data sets, and the worst two.
    Poisson's curve at the same rate is no bound, nor is that of a smaller cohort.
    """
    grid = DensityGrid(1.0, 8_001)
    rng = np.random.default_rng(0)
    rate = 2 / 5
    epsilons = np.array([0.0, 0.3, 1.0, 2.0])
    inner_epsilons = np.log1p(np.expm1(epsilons) / rate)
    bounds = [
        *fixed_size.upper_deltas(((1.0, 1),), rate, epsilons),
        [rate * gaussian_delta(0.5, epsilon) for epsilon in inner_epsilons],
    ]
    largest = np.zeros((3, len(epsilons)))
    data_sets = [
        np.array([1.0, -1, -1, -1, -1]),
        np.ones(5),
        *rng.uniform(-1, 1, (100, 5)),
        *rng.choice([-1.0, 0.0, 1.0], (100, 5)),
    ]
    for values in data_sets:
        present, absent, replaced = (
            grid.mean_of_cohorts([unit, *values[1:]], 2)
            for unit in (values[0], 0.0, -values[0])
        )
        pairs = (present, absent), (absent, present), (present, replaced)
        deltas = [[grid.delta(pair, epsilon) for epsilon in epsilons] for pair in pairs]
        largest = np.maximum(largest, deltas)
    assert np.all(largest <= np.array(bounds) + 1e-6)
    assert largest == pytest.approx(np.array(bounds), abs=2e-5)
    poisson_bound, _ = poisson.upper_deltas(((1.0, 1),), rate, epsilons)
    assert largest[0][3] > 3 * poisson_bound[3]
    smaller_cohort, _ = fixed_size.upper_deltas(((1.0, 1),), 1 / 5, epsilons)
    assert np.any(largest[0] > smaller_cohort)


def epsilon_of_two_rounds(grid, first, positive, negative):
    """Return epsilon of a pair in round 1, and in round 2 of one pair or the other
    according to the sign of the loss so far.
    """
    losses = np.linspace(-40, 40, 8001)
    curve = [grid.delta(positive if loss >= 0 else negative, loss) for loss in losses]
    first_loss = np.log(first[0] / first[1])

    def excess(epsilon):
        deltas = np.interp(epsilon - first_loss, losses, curve)
        return float((first[0] * deltas).sum() * grid.step) - DELTA

    return positive_root(excess)


@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE_ONE])
def test_fixed_size_of_two_rounds_is_a_quadrature(adjacency):
    """One data set in both rounds is the low end. One that is chosen after the first
    round is above it and below the high end.
    """
    grid = DensityGrid(2.0)
    q = 0.1
    if adjacency == ZERO_OUT:
        rising = grid.mixture(q, 2), grid.mixture(q, 1)
        falling = grid.normal(0), grid.mixture(q, 1)
    else:
        rising = grid.mixture(q, 2), grid.normal(0)
        falling = rising[::-1]
    low, high = bracket(fixed_size, ((2.0, 2),), q, DELTA, adjacency)
    fixed = epsilon_of_two_rounds(grid, rising, rising, rising)
    chosen = epsilon_of_two_rounds(grid, rising, rising, falling)
    assert low <= fixed <= low + 1e-3
    assert fixed + 1e-3 < chosen <= high <= chosen + 4e-3
    if adjacency == REPLACE_ONE:
        assert poisson.upper_epsilon(((1.0, 2),), q, DELTA) < chosen - 3e-3


def test_fixed_size_of_ten_rounds_agrees_with_dp_accounting():
    """The unit 1 and all others -1, the release on 4,000 places."""
    grid = DensityGrid(1.0, 4_001)
    masses = [
        dict(enumerate(np.log(grid.mixture(0.1, mean) * grid.step))) for mean in (1, 2)
    ]
    one_round = privacy_loss_distribution.from_two_probability_mass_functions(*masses)
    expected = one_round.self_compose(10).get_epsilon_for_delta(DELTA)
    low, high = bracket(fixed_size, ((1.0, 10),), 0.1, DELTA)
    assert low == pytest.approx(expected, abs=3e-3)
    assert low < high < 1.02 * low
    assert low > 2 * poisson.upper_epsilon(((1.0, 10),), 0.1, DELTA)


def test_fixed_size_of_all_units_is_a_gaussian_and_of_next_to_none_is_zero():
    gaussian = gaussian_epsilon(1.0, DELTA)
    assert bracket(fixed_size, ((4.0, 16),), 1.0, DELTA) == (gaussian, gaussian)
    high = fixed_size.upper_epsilon(((4.0, 16),), 1.0, DELTA, REPLACE_ONE)
    assert high == gaussian_epsilon(0.5, DELTA)
    assert fixed_size.upper_epsilon(((1.0, 5),), 1e-7, DELTA) == 0.0
    assert bracket(fixed_size, (), 0.5, DELTA) == (0.0, 0.0)


@pytest.mark.parametrize("z", [0.7, 2.0])
def test_fixed_size_renyi_divergences_bound_the_worst_data_sets(z):
    """By quadrature; and the epsilon that follows from them is above the high end."""
    q = 0.1
    orders = (2, 3, 8, 32)
    divergences = fixed_size.renyi(z, q, orders)
    grid = np.linspace(-30 * z, 70 + 30 * z, 400_001)
    step = grid[1] - grid[0]

    def log_mixture(mean):
        absent = math.log1p(-q) + norm.logpdf(grid, 0, z)
        return np.logaddexp(absent, math.log(q) + norm.logpdf(grid, mean, z))

    for order, divergence in zip(orders, divergences, strict=True):
        for means in ((2, 1), (1, 0)):
            first, second = map(log_mixture, means)
            moment = logsumexp(order * first - (order - 1) * second) + math.log(step)
            assert moment / (order - 1) <= divergence + 1e-9
    orders = tuple(range(2, 257))
    divergences = 10 * fixed_size.renyi(z, q, orders)
    bound = renyi.epsilon_of(divergences, orders, DELTA, tight=True)
    assert fixed_size.upper_epsilon(((z, 10),), q, DELTA) <= bound


@pytest.mark.parametrize(
    "changes", [{}, {"unit": "record", "sampler": {**SAMPLER, "records": 500}}]
)
def test_account_of_fixed_size_has_both_adjacencies(changes):
    releases = make_releases(10, **{"sampler": SAMPLER} | changes)
    profiles = profiles_of(releases, DELTA, claims={})
    proven = profiles["proven"]
    replace_one = profiles["replace_one"]
    schedule = ((1.0, 10),)
    assert proven.epsilon_high == fixed_size.upper_epsilon(schedule, 0.1, DELTA)
    expected = fixed_size.upper_epsilon(schedule, 0.1, DELTA, REPLACE_ONE)
    assert replace_one.epsilon_high == expected
    assert proven.epsilon_high < replace_one.epsilon_low <= replace_one.epsilon_high
    assert replace_one.adjacency == "replace-one"
    assert epsilon_after("proven", SAMPLER, 1.0, 10, DELTA) == proven.epsilon_high


def test_fixed_size_of_an_image_of_several_clients():
    """At least one client's epsilon; at most that of all of them in every round."""
    accountant = analyses.find("gaussian", "fixed-size")
    events = Events.planned(((4.0, 3),), SAMPLER)

    def image(clients):
        use = ImageUse(images=np.zeros((clients, 1), int), rounds=None)
        return accountant.image(events, use, DELTA)

    assert tuple(image(1)) == tuple(accountant.bracket(events, DELTA))
    assert image(1)[0] < image(3)[1] <= gaussian_epsilon(4 / 3 / 3**0.5, DELTA)


@pytest.mark.parametrize("z", [0.1, 0.19])
def test_fixed_size_bracket_of_little_noise_has_both_ends(z):
    """One data set is not the worst pair, so that zero-out has a gap."""
    low, high = bracket(fixed_size, ((z, 60),), 0.05, DELTA)
    assert 0.8 * high < low < high < 0.5 * gaussian_epsilon(z / 60**0.5, DELTA)
    low, high = bracket(fixed_size, ((z, 60),), 0.05, DELTA, REPLACE_ONE)
    assert low < high
    assert not is_wide(low, high)
