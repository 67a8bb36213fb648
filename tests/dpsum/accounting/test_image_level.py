"""One image, used by several clients: counts by hand, exact cases, a Monte Carlo, and
an empirical attack.
"""

import itertools
import math
import statistics

import numpy as np
import pytest

from dpfedbench.data.images import load_dataset
from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import image_use, used_images
from dpsum import participation
from dpsum.accounting import analyses
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import balls_and_bins, poisson
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.image_level import ImageUse
from tests.dpfedbench.federation.conftest import make_config
from tests.partitions import make_partition

DELTA = 1e-5


def sampler(kind, rounds, rate):
    return {"kind": kind, "rounds": rounds, "rate": rate}


def image_bracket(kind, use, multipliers, given, delta):
    events = Events.planned(tuple((z, 1) for z in multipliers), given)
    return analyses.find("gaussian", kind).image(events, use, delta)


def one_image(uses):
    """`uses` clients that share image 0; each has another of its own."""
    return np.stack([np.zeros(uses, int), np.arange(1, uses + 1)], axis=1)


def test_known_blocks_are_one_gaussian_of_the_worst_image():
    """Image 0: two clients in round 0, one in round 1, z = 2 and 1: mu^2 = 4/4 + 1.
    Image 9: three in round 2: 9/9.
    """
    images = np.array([[0, 9], [0, 1], [0, 2], [9, 3], [9, 4], [9, 5]])
    use = ImageUse(images=images, rounds=np.array([0, 0, 1, 2, 2, -1]))
    low, high = image_bracket(
        "one-pass", use, [2.0, 1.0, 3.0], sampler("one-pass", 3, 1 / 3), DELTA
    )
    assert low == high == pytest.approx(gaussian_epsilon(2**-0.5, DELTA), rel=1e-12)
    # With less noise in the third round image 9 is the worst: client 0 took part in
    # round 0.
    found = image_bracket(
        "one-pass", use, [2.0, 1.0, 0.5], sampler("one-pass", 3, 1 / 3), DELTA
    )[1]
    assert found == pytest.approx(
        gaussian_epsilon((1 / 4 + 4 / 0.25) ** -0.5, DELTA), rel=1e-12
    )
    # Rounds that were not run release nothing.
    found = image_bracket("one-pass", use, [2.0], sampler("one-pass", 3, 1 / 3), DELTA)[
        1
    ]
    assert found == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-12)


def test_own_updates_of_one_block_are_seen_one_by_one():
    """Image 0: two clients of a block, each with noise of its own, z = 1: mu = sqrt(2),
    7.286 at 1e-6 and not 10.997.

    The delta of one Gaussian of mu is Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu),
    by hand.
    """

    def delta_at(epsilon, square):
        below, mu = statistics.NormalDist().cdf, square**0.5
        return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(
            -mu / 2 - epsilon / mu
        )

    given = participation.own_update(clients=6, cohort=2, rounds=3)
    images = np.array([[0, 9], [0, 1], [2, 3], [4, 5], [6, 9], [7, 8]])
    use = ImageUse(images=images, rounds=np.array([0, 0, 1, 1, 2, 2]))
    low, high = image_bracket("own-update", use, [1.0] * 3, given, 1e-6)
    assert low == high == pytest.approx(7.286, abs=5e-4)
    assert delta_at(high, 2.0) == pytest.approx(1e-6, rel=1e-6)
    # Of other noise in the third round the worst image is 9: one client in each of two
    # blocks.
    other = image_bracket("own-update", use, [1.0, 1.0, 0.9], given, 1e-6)[1]
    assert delta_at(other, 1 + 1 / 0.81) == pytest.approx(1e-6, rel=1e-6)
    secret = ImageUse(images=use.images, rounds=None)
    assert image_bracket("own-update", secret, [1.0] * 3, given, 1e-6) == pytest.approx(
        (low, high), rel=1e-12
    )
    assert image_bracket("own-update", secret, [1.0] * 2, given, 1e-6) == pytest.approx(
        (0.0, high), rel=1e-12
    )


def test_the_counts_are_those_of_a_real_partition_and_of_the_runs_own_blocks(
    federation,
):
    """Against a count image by image and client by client of the fixture's
    partition.
    """
    data, clients = federation
    config = make_config()
    use = image_use(config, clients)
    with np.load(clients / "clients.npz") as arrays:
        classes, examples = arrays["classes"], arrays["examples"]
    plain = {}
    for client in range(48):
        for way in range(3):
            for example in examples[
                client, way, :3
            ]:  # one of support and two of query; the fourth is not used
                plain.setdefault((classes[client, way], example), []).append(client)
    assert sorted(use.counts()) == sorted(len(users) for users in plain.values())
    assert use.counts().sum() == 48 * 9
    worst = max(
        sum(count * count for count in np.bincount(use.rounds[users], minlength=12))
        for users in plain.values()
    )
    assert use.worst_square([1.0] * 12) == pytest.approx(worst)
    assert sorted(np.bincount(use.rounds)) == [4] * 12
    assert worst > 1

    dataset = load_dataset(data)
    dealt = make_partition(
        dataset, clients=4, ways=3, examples_per_class=4, kind="disjoint", seed=0
    )
    disjoint = used_images(dealt, used_per_class=3, rounds=np.array([0, 0, 1, 1]))
    assert set(disjoint.counts()) == {1} and disjoint.worst_square([2.0, 2.0]) == 0.25


@pytest.mark.parametrize("kind", ["one-pass", "balls-and-bins", "poisson"])
def test_an_image_of_one_client_is_as_private_as_its_client(kind):
    use = ImageUse(
        images=np.arange(12).reshape(6, 2), rounds=np.array([0, 0, 1, 1, 2, 2])
    )
    found = image_bracket(kind, use, [1.0] * 3, sampler(kind, 3, 1 / 3), DELTA)
    wanted = {
        "one-pass": (gaussian_epsilon(1.0, DELTA),) * 2,
        "balls-and-bins": tuple(
            end(1.0, 3, 3, DELTA)
            for end in (balls_and_bins.lower_epsilon, balls_and_bins.upper_epsilon)
        ),
        "poisson": (
            poisson.lower_epsilon(((1.0, 3),), 1 / 3, DELTA),
            poisson.upper_epsilon(((1.0, 3),), 1 / 3, DELTA),
        ),
    }[kind]
    assert found == pytest.approx(wanted, rel=1e-12)


def test_poisson_against_a_monte_carlo_of_whole_runs():
    """3 clients, q = 0.2, 8 rounds, z = 2: E_P (1 - e^(eps - L))+ of 300,000 runs; 5
    standard errors, 1e-6.
    """
    uses, q, rounds, z, delta = 3, 0.2, 8, 2.0, 1e-3
    use = ImageUse(images=one_image(uses), rounds=None)
    low, high = image_bracket(
        "poisson", use, [z] * rounds, sampler("poisson", rounds, q), delta
    )
    rng = np.random.default_rng(0)
    x = rng.binomial(uses, q, size=(300_000, rounds)) + z * rng.standard_normal(
        (300_000, rounds)
    )
    ratios = sum(
        math.comb(uses, n)
        * q**n
        * (1 - q) ** (uses - n)
        * np.exp((n * x - n * n / 2) / z**2)
        for n in range(uses + 1)
    )
    losses = np.log(ratios).sum(axis=1)

    def estimate(epsilon):
        gains = -np.expm1(np.minimum(epsilon - losses, 0.0))
        return gains.mean(), 5 * gains.std() / math.sqrt(len(gains))

    value, error = estimate(high)
    assert value <= delta + error
    value, error = estimate(low)
    assert value >= delta - error
    value, error = estimate(0.8 * low)
    assert value > delta + error


@pytest.mark.parametrize(("uses", "z"), [(2, 1.0), (3, 2.0), (6, 4.0), (12, 1.0)])
def test_balls_and_bins_between_its_ends_by_a_monte_carlo(uses, z):
    """The pair itself, where k = 2 and T = 6 has 36 draws at most; 200,000 runs, 5
    standard errors, false alarm 1e-6.

    P is the mean over all draws of N(counts, z^2 I); for more clients its density is
    estimated low by few draws, so that only the low end of delta is tested there.
    """
    rounds, delta = 6, 1e-3
    use = ImageUse(images=one_image(uses), rounds=None)
    low, high = image_bracket(
        "balls-and-bins",
        use,
        [z] * rounds,
        sampler("balls-and-bins", rounds, 1 / 6),
        delta,
    )
    assert 0 < low <= high <= gaussian_epsilon(z / uses, delta)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(uses, [1 / rounds] * rounds, size=200_000)
    x = counts + z * rng.standard_normal(counts.shape)
    # A statistic that anyone can compute: the sum over rounds, one Gaussian. What it
    # tells is a lower bound of delta.
    mean, deviation = uses, z * math.sqrt(rounds)
    losses = (x.sum(axis=1) - mean / 2) * mean / deviation**2
    gains = -np.expm1(np.minimum(high - losses, 0.0))
    assert gains.mean() <= delta + 5 * gains.std() / math.sqrt(len(gains))
    if uses == 2:
        pairs = [
            np.bincount([a, b], minlength=rounds)
            for a in range(rounds)
            for b in range(rounds)
        ]
        ratio = sum(
            np.exp((x @ pair - pair @ pair / 2) / z**2) for pair in pairs
        ) / len(pairs)
        for end, sign in ((high, 1), (low, -1)):
            gains = -np.expm1(np.minimum(end - np.log(ratio), 0.0))
            error = 5 * gains.std() / math.sqrt(len(gains))
            assert sign * gains.mean() <= sign * delta + error


def test_more_uses_are_never_better():
    for kind in ("balls-and-bins", "poisson"):
        ends = [
            image_bracket(
                kind,
                ImageUse(images=one_image(k), rounds=None),
                [2.0] * 10,
                sampler(kind, 10, 0.1),
                DELTA,
            )
            for k in (1, 2, 4, 9)
        ]
        assert all(a[1] <= b[1] and a[0] <= b[0] for a, b in itertools.pairwise(ends))


def test_what_does_not_fit_is_refused(federation):
    _, clients = federation
    with pytest.raises(BenchError, match="fewer than the 6"):
        image_use(
            make_config({"clients": {"examples_per_class": 6, "query_per_class": 5}}),
            clients,
        )
    with pytest.raises(BenchError, match="48 clients, the run 24"):
        image_use(
            make_config({"clients": {"count": 24}, "participation": {"rounds": 6}}),
            clients,
        )
    use = ImageUse(images=one_image(2), rounds=None)
    with pytest.raises(BenchError, match="poisson-lots"):
        image_bracket(
            "poisson-lots", use, [1.0], sampler("poisson-lots", 1, 0.1), DELTA
        )
