"""Fixed-size cohorts: quadrature over whole data sets and over two rounds,
dp-accounting, a simulation, and limits.

No expected value is from the code under test. Planted is what a tired colleague would
take: Poisson's account at the same rate, the rate of another cohort, and one data set's
pair for both halves of the dominating one.
"""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq
from scipy.stats import binomtest

from dpsum.accounting import analyses, renyi
from dpsum.accounting.account import account
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import fixed_size, poisson
from dpsum.accounting.calibration import calibrate, epsilon_after
from dpsum.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpsum.accounting.groups import squares_of_hypergeometrics
from dpsum.accounting.image_level import ImageUse
from tests.dpsum.accounting.test_samplers import ledger

DELTA = 1e-5
ZERO_OUT, REPLACE_ONE = fixed_size.ZERO_OUT, fixed_size.REPLACE_ONE
SAMPLER = {
    "kind": "fixed-size",
    "clients": 500,
    "cohort": 50,
    "rounds": 10,
    "rate": 0.1,
}


class Line:
    """Densities on a fine grid, for one z."""

    def __init__(self, z, points=60_001):
        self.z, self.x = z, np.linspace(-13 * z - 8, 13 * z + 8, points)
        self.dx = self.x[1] - self.x[0]

    def normal(self, mean):
        return np.exp(-((self.x - mean) ** 2) / (2 * self.z**2)) / (
            self.z * math.sqrt(2 * math.pi)
        )

    def mixed(self, rate, mean):
        return (1 - rate) * self.normal(0.0) + rate * self.normal(mean)

    def delta(self, pair, epsilon):
        return float(
            np.maximum(pair[0] - math.exp(epsilon) * pair[1], 0.0).sum() * self.dx
        )

    def epsilon(self, pair, delta):
        return root(lambda epsilon: self.delta(pair, epsilon) - delta)


def root(excess):
    return float(brentq(excess, 0.0, 60.0, xtol=1e-10)) if excess(0.0) > 0 else 0.0


@pytest.mark.parametrize(
    ("z", "q"), [(0.5, 0.1), (1.0, 0.004), (1.0, 0.5), (3.0, 0.1), (8.0, 0.9)]
)
def test_one_round_is_a_quadrature(z, q):
    """The unit 1 and all others -1; under replace-one Balle, Barthe and Gaboardi's
    Theorem 9 in closed form.
    """
    line = Line(z)
    pairs = (line.mixed(q, 2), line.mixed(q, 1)), (line.mixed(q, 1), line.normal(0))
    exact = max(line.epsilon(pair, DELTA) for pair in pairs)
    low, high = (
        end(((z, 1),), q, DELTA)
        for end in (fixed_size.lower_epsilon, fixed_size.upper_epsilon)
    )
    assert low <= exact + 1e-6 and exact - 1e-6 <= high and high - low <= 2e-3
    alone = gaussian_epsilon(
        z / 2, DELTA / q
    )  # (eps, delta) becomes (log(1 + q (e^eps - 1)), q delta)
    exact = math.log1p(q * math.expm1(alone))
    low, high = (
        end(((z, 1),), q, DELTA, REPLACE_ONE)
        for end in (fixed_size.lower_epsilon, fixed_size.upper_epsilon)
    )
    assert low <= exact <= high and high - low <= 2e-3


def release(line, values, size):
    """The law of a round's release: the mean over all cohorts of so many of the
    values.
    """
    return np.mean(
        [line.normal(sum(cohort)) for cohort in itertools.combinations(values, size)],
        axis=0,
    )


def test_no_data_set_is_above_the_curve_of_one_round():
    """Whole data sets of five units, by going through all cohorts of two: 200 drawn
    ones, and the worst.
    """
    line, rng, rate = Line(1.0, 8_001), np.random.default_rng(0), 2 / 5
    epsilons = np.array([0.0, 0.3, 1.0, 2.0])
    present, absent = fixed_size.upper_deltas(((1.0, 1),), rate, epsilons)
    replaced = np.array(
        [rate * gaussian_delta(0.5, math.log1p(math.expm1(e) / rate)) for e in epsilons]
    )
    most = np.zeros((3, len(epsilons)))
    worst = [np.array([1.0, -1, -1, -1, -1]), np.ones(5)]
    for values in [
        *worst,
        *rng.uniform(-1, 1, (100, 5)),
        *rng.choice([-1.0, 0.0, 1.0], (100, 5)),
    ]:
        with_it, zeroed = release(line, values, 2), release(line, [0.0, *values[1:]], 2)
        other = release(line, [-values[0], *values[1:]], 2)
        pairs = (with_it, zeroed), (zeroed, with_it), (with_it, other)
        most = np.maximum(
            most, [[line.delta(pair, e) for e in epsilons] for pair in pairs]
        )
    for found, end in zip(most, (present, absent, replaced), strict=True):
        assert np.all(found <= end + 1e-6)
        assert found == pytest.approx(end, abs=2e-5)  # reached by the worst two
    # Poisson's curve at the same rate is not an end.
    taken, _ = poisson.upper_deltas(((1.0, 1),), rate, epsilons)
    assert most[0][3] > 3 * taken[3]
    # Neither is that of a cohort of one in five.
    assert np.any(most[0] > fixed_size.upper_deltas(((1.0, 1),), 1 / 5, epsilons)[0])


def two_rounds(line, first, then):
    """Epsilon at DELTA of two rounds: a data set's pair, and whatever curve the second
    round has after its loss.
    """
    losses, curve = np.linspace(-40, 40, 8001), None
    curve = np.array(
        [line.delta(then[0] if loss >= 0 else then[1], loss) for loss in losses]
    )
    own = np.log(first[0] / first[1])

    def excess(epsilon):
        return (
            float((first[0] * np.interp(epsilon - own, losses, curve)).sum() * line.dx)
            - DELTA
        )

    return root(excess)


@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE_ONE])
def test_two_rounds_are_a_quadrature(adjacency):
    """One data set in both rounds is the low end. One that is chosen after the first
    round is above it, and below the high.

    So the pair of one data set is no high end, as which the doubled sensitivity under
    Poisson's account would be taken.
    """
    line, q = Line(2.0), 0.1
    above = (
        line.mixed(q, 2),
        line.mixed(q, 1) if adjacency == ZERO_OUT else line.normal(0),
    )
    below = (
        (line.normal(0), line.mixed(q, 1))
        if adjacency == ZERO_OUT
        else (line.normal(0), line.mixed(q, 2))
    )
    low, high = (
        end(((2.0, 2),), q, DELTA, adjacency)
        for end in (fixed_size.lower_epsilon, fixed_size.upper_epsilon)
    )
    same, chosen = (
        two_rounds(line, above, (above, above)),
        two_rounds(line, above, (above, below)),
    )
    assert low <= same <= low + 1e-3
    assert same + 1e-3 < chosen <= high <= chosen + 4e-3
    if adjacency == REPLACE_ONE:
        assert poisson.upper_epsilon(((1.0, 2),), q, DELTA) < chosen - 3e-3


def test_ten_rounds_of_one_data_set_are_dp_accountings_composition():
    """Of the unit 1 and all others -1, with the release rounded to one of 4,000 places:
    theirs is on a grid of 1e-4.
    """
    line = Line(1.0, 4_001)
    masses = [
        dict(enumerate(np.log(law * line.dx)))
        for law in (line.mixed(0.1, 1), line.mixed(0.1, 2))
    ]
    theirs = privacy_loss_distribution.from_two_probability_mass_functions(
        *masses
    ).self_compose(10)
    low = fixed_size.lower_epsilon(((1.0, 10),), 0.1, DELTA)
    assert low == pytest.approx(theirs.get_epsilon_for_delta(DELTA), abs=3e-3)
    high = fixed_size.upper_epsilon(((1.0, 10),), 0.1, DELTA)
    assert low < high < 1.02 * low
    assert low > 2 * poisson.upper_epsilon(
        ((1.0, 10),), 0.1, DELTA
    )  # what Poisson's account would print


def test_it_is_below_dp_accountings_renyi_bound():
    """Its event is for replace-one, with z over the sensitivity of 2 thresholds (Wang
    et al. 2019).
    """
    for z, cohort, rounds in ((2.0, 50, 20), (4.0, 50, 100), (1.0, 5, 40)):
        theirs = rdp.RdpAccountant(
            neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
        )
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            500, cohort, dp_accounting.GaussianDpEvent(z / 2)
        )
        theirs.compose(event, rounds)
        schedule = ((z, rounds),)
        high = fixed_size.upper_epsilon(schedule, cohort / 500, DELTA, REPLACE_ONE)
        assert high < theirs.get_epsilon(DELTA)
        zero_out = fixed_size.upper_epsilon(schedule, cohort / 500, DELTA)
        assert (
            fixed_size.lower_epsilon(schedule, cohort / 500, DELTA) <= zero_out < high
        )


def test_simulated_cohorts_tell_more_than_poissons_account_allows():
    """Two rounds of 2 of 8 units, drawn and summed: the unit 1, all others -1, z = 1;
    events by the sum of losses.

    400,000 runs of each world, seed 5; the bound is exact (Clopper and Pearson) at a
    false alarm in 10,000.
    """
    rng, runs, rate, z = np.random.default_rng(5), 400_000, 2 / 8, 1.0
    worlds = []
    for unit in (1.0, 0.0):
        there = (
            rng.random((runs, 2)) < rate
        )  # of a uniform set of 2 of 8 a given unit is one with chance 1/4
        sums = np.where(there, unit - 1.0, -2.0) + z * rng.standard_normal((runs, 2))
        y = np.exp(sums + 2.0 - 0.5)
        worlds.append(
            np.log((1 - rate + rate * math.exp(-1) * y**2) / (1 - rate + rate * y)).sum(
                axis=1
            )
        )
    epsilon = poisson.upper_epsilon(((z, 2),), rate, 1e-3)
    (hits, misses), count = [int((world > 2.5).sum()) for world in worlds], 5e-5
    least = binomtest(hits, runs).proportion_ci(1 - 2 * count, "exact").low
    most = binomtest(misses, runs).proportion_ci(1 - 2 * count, "exact").high
    assert least - math.exp(epsilon) * most > 1e-3, (
        "Poisson's account holds of these cohorts"
    )
    epsilon = fixed_size.upper_epsilon(((z, 2),), rate, 1e-3)
    assert least - math.exp(epsilon) * most < 1e-3


def test_all_and_next_to_none():
    assert fixed_size.upper_epsilon(((4.0, 16),), 1.0, DELTA) == gaussian_epsilon(
        1.0, DELTA
    )
    assert fixed_size.lower_epsilon(((4.0, 16),), 1.0, DELTA) == gaussian_epsilon(
        1.0, DELTA
    )
    assert fixed_size.upper_epsilon(
        ((4.0, 16),), 1.0, DELTA, REPLACE_ONE
    ) == gaussian_epsilon(0.5, DELTA)
    assert (
        fixed_size.upper_epsilon(((1.0, 5),), 1e-7, DELTA) == 0.0
    )  # nobody is in any, but for 5e-7
    assert (
        fixed_size.upper_epsilon((), 0.5, DELTA)
        == fixed_size.lower_epsilon((), 0.5, DELTA)
        == 0.0
    )


@pytest.mark.parametrize("z", [0.7, 2.0])
def test_renyi_divergences_are_above_those_of_any_data_set(z):
    """Quadrature for the worst data sets; and what follows from them is above the high
    end.
    """
    q, orders = 0.1, (2, 3, 8, 32)
    ours = fixed_size.renyi(z, q, orders)
    grid = np.linspace(-30 * z, 70 + 30 * z, 400_001)

    def log(mean):
        return np.logaddexp(
            math.log1p(-q) - grid**2 / 2 / z**2,
            math.log(q) - (grid - mean) ** 2 / 2 / z**2,
        )

    for at, order in enumerate(orders):
        for p, other in ((log(2), log(1)), (log(1), log(0))):
            exponents = order * p - (order - 1) * other
            total = (
                np.exp(exponents - exponents.max()).sum()
                * (grid[1] - grid[0])
                / (z * math.sqrt(2 * math.pi))
            )
            assert (math.log(total) + exponents.max()) / (order - 1) <= ours[at] + 1e-9
    every = tuple(range(2, 257))
    bound = renyi.epsilon_of(
        10 * fixed_size.renyi(z, q, every), every, DELTA, tight=True
    )
    assert fixed_size.upper_epsilon(((z, 10),), q, DELTA) <= bound


def test_a_ledger_has_both_adjacencies_and_every_profile():
    found = account(ledger(SAMPLER), delta=DELTA, claims={})
    holds, replaced = found.profiles["holds"], found.profiles["replace_one"]
    schedule = ((1.0, 10),)
    assert holds.epsilon_high == fixed_size.upper_epsilon(schedule, 0.1, DELTA)
    assert replaced.epsilon_high == fixed_size.upper_epsilon(
        schedule, 0.1, DELTA, REPLACE_ONE
    )
    assert holds.epsilon_high < replaced.epsilon_low <= replaced.epsilon_high
    assert (
        replaced.adjacency == "replace-one"
        and "an analysis of its own" in replaced.explanation
    )
    assert epsilon_after("holds", SAMPLER, 1.0, 10, DELTA) == holds.epsilon_high
    z = calibrate("holds", SAMPLER, 1.5, DELTA)
    assert (
        fixed_size.upper_epsilon(((z, 10),), 0.1, DELTA)
        <= 1.5
        < fixed_size.upper_epsilon(((z - 0.01, 10),), 0.1, DELTA)
    )


def test_cohorts_of_records_are_drawn_from_the_records():
    records = {**SAMPLER, "clients": 1, "records": 500}
    found = account(ledger(records, unit="record"), delta=DELTA, claims={}).profiles[
        "holds"
    ]
    assert found.epsilon_high == fixed_size.upper_epsilon(((1.0, 10),), 0.1, DELTA)


def test_rounds_of_different_noise_are_composed_as_they_were():
    lines = [
        *ledger(SAMPLER, noise_multiplier=2.0)[:5],
        *ledger(SAMPLER)[5:],
    ]
    lines[:5] = [type(line)(**{**vars(line), "noise_std": 2.0}) for line in lines[:5]]
    found = account(lines, delta=DELTA, claims={}).profiles["holds"]
    least, most = (fixed_size.upper_epsilon(((z, 10),), 0.1, DELTA) for z in (2.0, 1.0))
    assert least < found.epsilon_low < found.epsilon_high < most


def test_an_image_of_several_clients():
    """One client's at least; at most what one Gaussian of all of them in every round
    has.
    """
    analysis = analyses.find("gaussian", "fixed-size")
    events = Events.planned(((4.0, 3),), SAMPLER)
    one = ImageUse(images=np.zeros((1, 1), int), rounds=None)
    low, high = analysis.image(events, one, DELTA)
    assert [low, high] == list(analysis.bracket(events, DELTA))
    three = ImageUse(images=np.zeros((3, 1), int), rounds=None)
    assert (
        low
        < analysis.image(events, three, DELTA)[1]
        <= gaussian_epsilon(4 / 3 / 3**0.5, DELTA)
    )


def test_the_law_of_how_many_of_several_are_drawn():
    """By going through all cohorts of 3 of 7 with 4 marked units, two rounds."""
    cohorts = [
        sum(unit < 4 for unit in cohort)
        for cohort in itertools.combinations(range(7), 3)
    ]
    law, missing = squares_of_hypergeometrics(4, 3, 7, 2)
    exact = np.zeros(19)
    for one, two in itertools.product(cohorts, repeat=2):
        exact[one**2 + two**2] += len(cohorts) ** -2
    assert law == pytest.approx(exact[: len(law)], abs=1e-12) and missing < 1e-10
