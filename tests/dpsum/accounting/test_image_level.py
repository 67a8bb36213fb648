"""One image that several clients use: counts by hand, exact cases, Monte Carlo."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom

from dploss.gaussian import gaussian_epsilon
from dpsum import participation
from dpsum.accounting import analyses
from dpsum.accounting.accountant import Events
from dpsum.accounting.image_level import ImageUse
from tests.dpsum.accounting.helpers import delta_interval, sampled_gaussian_epsilon

DELTA = 1e-5


def image_bracket(use, multipliers, sampler, delta=DELTA):
    events = Events.planned(tuple((z, 1) for z in multipliers), sampler)
    return analyses.find("gaussian", sampler["kind"]).image(events, use, delta)


def shared_image(clients):
    """Return clients that share image 0; each has another image of its own."""
    images = np.stack([np.zeros(clients, int), np.arange(1, clients + 1)], axis=1)
    return ImageUse(images=images, rounds=None)


@pytest.mark.parametrize(
    ("multipliers", "square"),
    [([2.0, 1.0, 3.0], 2.0), ([2.0, 1.0, 0.5], 1 / 4 + 4 / 0.25), ([2.0], 1.0)],
)
def test_image_in_known_blocks_is_one_gaussian_of_the_worst_image(multipliers, square):
    """Image 0: two clients in round 0, one in round 1, z = 2 and 1: mu^2 = 4/4 + 1.
    Image 9: one in round 0 and two in round 2, the worst with little noise there.
    """
    images = np.array([[0, 9], [0, 1], [0, 2], [9, 3], [9, 4], [9, 5]])
    use = ImageUse(images=images, rounds=np.array([0, 0, 1, 2, 2, -1]))
    expected = pytest.approx(gaussian_epsilon(square**-0.5, DELTA), rel=1e-12)
    sampler = {"kind": "one-pass", "rounds": 3, "rate": 1 / 3}
    assert image_bracket(use, multipliers, sampler) == (expected, expected)


def test_image_of_own_updates_is_seen_in_each_update():
    """Two clients of a block, each with noise of its own, z = 1: mu = sqrt(2), 7.286 at
    1e-6. With less noise in the third round the worst image is 9, of two blocks.
    """

    def gaussian(square):
        return pytest.approx(sampled_gaussian_epsilon(square**-0.5, 1, 1e-6), rel=1e-9)

    sampler = participation.local(clients=6, cohort=2, rounds=3)
    images = np.array([[0, 9], [0, 1], [2, 3], [4, 5], [6, 9], [7, 8]])
    known = ImageUse(images=images, rounds=np.array([0, 0, 1, 1, 2, 2]))
    secret = ImageUse(images=images, rounds=None)
    two = gaussian(2.0)
    worst = gaussian(1 + 1 / 0.81)
    assert image_bracket(known, [1.0] * 3, sampler, 1e-6) == (two, two)
    assert image_bracket(known, [1.0, 1.0, 0.9], sampler, 1e-6)[1] == worst
    assert image_bracket(secret, [1.0] * 3, sampler, 1e-6) == (two, two)
    assert image_bracket(secret, [1.0] * 2, sampler, 1e-6) == (0.0, two)


def test_image_of_poisson_cohorts_by_monte_carlo():
    """3 clients, q = 0.2, 8 rounds, z = 2: 300,000 runs, 5 standard errors, 1e-6."""
    clients = 3
    q = 0.2
    rounds = 8
    z = 2.0
    delta = 1e-3
    sampler = {"kind": "poisson", "rounds": rounds, "rate": q}
    low, high = image_bracket(shared_image(clients), [z] * rounds, sampler, delta)
    rng = np.random.default_rng(0)
    x = z * rng.standard_normal((300_000, rounds))
    x += rng.binomial(clients, q, size=x.shape)
    ratios = sum(
        chance * np.exp((n * x - n * n / 2) / z**2)
        for n, chance in enumerate(binom.pmf(np.arange(clients + 1), clients, q))
    )
    losses = np.log(ratios).sum(axis=1)
    assert delta_interval(losses, high)[0] <= delta <= delta_interval(losses, low)[1]
    assert delta_interval(losses, 0.8 * low)[0] > delta


@pytest.mark.parametrize(("clients", "z"), [(2, 1.0), (3, 2.0), (12, 1.0)])
def test_image_of_balls_and_bins_by_monte_carlo(clients, z):
    """200,000 runs of T = 6, 5 standard errors, false alarm 1e-6. The sum over rounds
    is one Gaussian and gives a lower bound of delta. For two clients the pair itself is
    the mean over all 36 draws of N(counts, z^2 I).
    """
    rounds = 6
    delta = 1e-3
    sampler = {"kind": "balls-and-bins", "rounds": rounds, "rate": 1 / 6}
    low, high = image_bracket(shared_image(clients), [z] * rounds, sampler, delta)
    assert 0 < low <= high <= gaussian_epsilon(z / clients, delta)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(clients, [1 / rounds] * rounds, size=200_000)
    x = counts + z * rng.standard_normal(counts.shape)
    losses = (x.sum(axis=1) - clients / 2) * clients / (z**2 * rounds)
    assert delta_interval(losses, high)[0] <= delta
    if clients == 2:
        ratios = np.zeros(len(x))
        for pair in itertools.product(range(rounds), repeat=2):
            pair_counts = np.bincount(pair, minlength=rounds)
            square = pair_counts @ pair_counts
            ratios += np.exp((x @ pair_counts - square / 2) / z**2) / rounds**2
        losses = np.log(ratios)
        assert delta_interval(losses, high)[0] <= delta
        assert delta_interval(losses, low)[1] >= delta
