"""The rank test: its curves, its level, and what an ideal attacker shows.

Expected values are draws of the samplers themselves, and closed forms.
"""

import math

import numpy as np
import pytest
from scipy import stats

from dploss.gaussian import gaussian_delta, gaussian_epsilon
from dpsum.accounting.accountant import Accountant, Curve, Events
from dpsum.accounting.analyses import balls_and_bins, find, poisson
from dpsum.audit.ranks import Family, RankTest, posteriors, rank_test

ROUNDS = 20
RATE = 0.05
KINDS = ("one-pass", "balls-and-bins", "poisson")


def make_family(kind, z=1.0):
    sampler = {"kind": kind, "rounds": ROUNDS, "rate": RATE}
    return Family(find("gaussian", kind), ((z, ROUNDS),), sampler)


FAMILIES = {kind: make_family(kind) for kind in KINDS}


def make_test(kind, canaries, seed=0, confidence=0.95):
    draws = {"confidence": confidence, "generator": np.random.default_rng(seed)}
    return RankTest(FAMILIES[kind], canaries, **draws)


def run_rank_test(scores, coins, family=FAMILIES["one-pass"]):
    draws = {"confidence": 0.95, "generator": np.random.default_rng(0)}
    return rank_test(scores, coins, family, delta=1e-6, **draws)


def draw_ratios(kind, count, seed, z=1.0, present=0.5):
    """Return coins and log-likelihood ratios that the sampler itself draws.

    `present` is the chance of a coin.
    """
    rng = np.random.default_rng(seed)
    coins = rng.random(count) < present
    releases = z * rng.normal(size=(count, 1 if kind == "one-pass" else ROUNDS))
    if kind == "poisson":
        releases += coins[:, None] * (rng.random(releases.shape) < RATE)
    else:
        rounds = rng.integers(releases.shape[1], size=count)
        releases[np.arange(count), rounds] += coins
    ratios = np.exp((2 * releases - 1) / (2 * z * z))
    if kind == "poisson":
        return coins, np.log1p(RATE * (ratios - 1)).sum(1)
    return coins, np.log(ratios.mean(1))


def statistic_of(test, coins, scores):
    return test.statistic(coins[np.argsort(-scores, kind="stable")])


@pytest.mark.parametrize("kind", KINDS)
def test_posteriors_are_those_of_the_sampler(kind):
    """100,000 draws of each world. Four deviations of a rate at eight thresholds have a
    chance below 1e-3.
    """
    _, present = draw_ratios(kind, 100_000, 1, present=True)
    _, absent = draw_ratios(kind, 100_000, 1, present=False)
    table = FAMILIES[kind].posteriors(1.0)
    assert (np.diff(table) <= 0).all()
    half_power = np.append(0.0, np.cumsum(table)) / len(table)
    shares = np.linspace(0, 1, len(half_power))
    tolerance = 4 * math.sqrt(0.25 / 1e5) + 2e-4
    for threshold in np.quantile(absent, [0.05, 0.2, 0.35, 0.5, 0.7, 0.9, 0.98, 0.999]):
        power = (present >= threshold).mean()
        alarms = (absent >= threshold).mean()
        expected = 2 * np.interp((power + alarms) / 2, shares, half_power)
        assert expected == pytest.approx(power, abs=tolerance)


@pytest.mark.parametrize("delta", [1e-3, 1e-2])
@pytest.mark.parametrize(
    ("analysis", "rounds"),
    [(balls_and_bins, (1.0, 20, 15)), (poisson, (((1.0, 20),), 0.05))],
)
def test_upper_deltas_invert_upper_epsilon(analysis, rounds, delta):
    epsilon = analysis.upper_epsilon(*rounds, delta)
    deltas = analysis.upper_deltas(*rounds, np.array([epsilon]))
    assert np.max(deltas) == pytest.approx(delta, rel=2e-3)


def test_upper_deltas_of_too_little_noise_for_a_grid_are_gaussian():
    present, absent = balls_and_bins.upper_deltas(0.04, 20, 10, np.array([1.0]))
    assert present == absent == pytest.approx(gaussian_delta(0.04, 1.0) / 2)
    present, absent = poisson.upper_deltas(((0.1, 4),), 0.5, np.array([1.0]))
    assert present == absent == pytest.approx(gaussian_delta(0.05, 1.0))


def test_posteriors_of_randomised_response_by_hand():
    """At ln 3 it answers rightly in 3 of 4: the higher half has 3/4, the lower 1/4."""
    table = posteriors(Curve(np.log([3.0]), np.zeros(1), np.zeros(1)))
    half = len(table) // 2
    assert table[:half] == pytest.approx(0.75)
    assert table[half:] == pytest.approx(0.25)


def test_posteriors_of_a_rare_full_leak_by_hand():
    """A tenth of the present is told for certain: 1/20 of all are surely present."""
    epsilons = np.array([0.0, 20.0, math.inf])
    absent = np.array([0.1, 0.0526, 0.0])
    table = posteriors(Curve(epsilons, np.full(3, 0.1), absent))
    assert table[0] == pytest.approx(1.0, abs=1e-8)
    assert table[-1] < 0.5


def test_curve_of_few_epsilons_leaks_more_and_not_much_more():
    class EpsilonOnly(Accountant):
        def high(self, events, delta):
            return gaussian_epsilon(events.ends[0], delta)

    events = Events.planned(((1.0, 1),), {})
    coarse, exact = (
        np.cumsum(posteriors(accountant.curve(events))) / (1 << 14)
        for accountant in (EpsilonOnly(), find("gaussian", "one-pass"))
    )
    assert (coarse >= exact - 1e-4).all()
    assert coarse.max() - 0.5 < 1e-2
    assert (coarse - exact).max() < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_rank_test_draws_have_the_law_of_the_attack(kind):
    """Kolmogorov-Smirnov, 399 of each; false alarm 1e-3. A leak a fifth larger is
    rejected.
    """
    test = make_test(kind, 400)
    draws = (draw_ratios(kind, 400, seed) for seed in range(399))
    statistics = [statistic_of(test, *drawn) for drawn in draws]
    assert stats.ks_2samp(statistics, test.draws(1.0)).pvalue > 1e-3
    assert stats.ks_2samp(statistics, test.draws(1.2)).pvalue < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_rank_test_errs_as_often_as_stated(kind):
    """400 audits of a member of the family: fewer than 6 or more than 40 alarms have a
    chance below 2e-4. A score that tells only the upper half errs no oftener.
    """
    alarms = 0
    coarse_alarms = 0
    for seed in range(400):
        coins, scores = draw_ratios(kind, 200, 5000 + seed)
        test = make_test(kind, 200, seed)
        limit = test.critical(1.0)
        alarms += statistic_of(test, coins, scores) > limit
        is_upper_half = 1.0 * (scores > np.median(scores))
        coarse_alarms += statistic_of(test, coins, is_upper_half) > limit
    assert stats.binom.sf(40, 400, 0.05) < 1e-4
    assert stats.binom.cdf(5, 400, 0.05) < 1e-4
    assert 6 <= alarms <= 40
    assert coarse_alarms <= 40


def test_rank_test_without_a_leak_is_zero_in_95_percent():
    """400 nulls: more than 40 false alarms of 5 % have a chance below 1e-4."""
    alarms = 0
    for seed in range(400):
        test = make_test("balls-and-bins", 200, seed)
        coins = np.random.default_rng(10_000 + seed).integers(2, size=200).astype(bool)
        alarms += test.statistic(coins) > test.critical(0.0)
    assert alarms <= 40
    assert test.refuted(test.critical(0.0)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_rank_test_of_an_ideal_attacker_shows_the_ideal_in_half_of_audits(kind):
    """100 audits with the exact ratio: fewer than 30 or more than 70 above have a
    chance below 1e-4 of a true half; the ideal, a median of 399 draws, is itself off by
    up to 4 % of chance.
    """
    test = make_test(kind, 1000, 3)
    ideal = np.median(test.draws(1.0))
    above_ideal = 0
    for seed in range(100):
        coins, scores = draw_ratios(kind, 1000, 9000 + seed)
        above_ideal += statistic_of(test, coins, scores) > ideal
    assert 30 <= above_ideal <= 70
    bound = run_rank_test(scores, coins, FAMILIES[kind])
    assert 0 < bound.ideal < FAMILIES[kind].epsilon(1.0, 1e-6)


def test_rank_test_of_one_gaussian_is_near_the_best_test():
    """The best test of a mean shift at 95 %, with n present and n absent, shows mu -
    1.645 sqrt(2 / n) in half of all audits.
    """
    coins, scores = draw_ratios("one-pass", 4000, 7)
    bound = run_rank_test(scores, coins)
    best = gaussian_epsilon(1 / (1 - 1.645 * math.sqrt(2 / 2000)), 1e-6)
    assert 0.97 * best < bound.ideal < 1.02 * best
    assert run_rank_test(-scores, coins).epsilon == 0


def test_rank_test_names_a_leak_beyond_the_largest():
    coins = np.random.default_rng(0).integers(2, size=50_000).astype(bool)
    family = make_family("one-pass", z=0.5)
    family.largest = 1.5
    bound = run_rank_test(coins * 1.0, coins, family)
    assert bound.epsilon == pytest.approx(gaussian_epsilon(0.5 / 1.5, 1e-6))
    assert "higher" in bound.reason
    assert bound.numbers["chance_of_as_much"] < 1e-12


def test_rank_test_of_a_high_confidence_has_enough_draws():
    test = make_test("one-pass", 50, confidence=0.999)
    draws = test.draws(1.0)
    assert len(draws) == 9999
    assert sum(draws > test.critical(1.0)) <= 9
