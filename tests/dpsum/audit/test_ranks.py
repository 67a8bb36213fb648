"""The rank test: its law against draws made otherwise, its level, and what an ideal
attacker would show.
"""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from dpsum.accounting.accountant import EPSILONS, Accountant, Curve, Events
from dpsum.accounting.analyses import balls_and_bins, find, poisson
from dpsum.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpsum.audit.ranks import Family, RankTest, posteriors, rank_test

AT = {"delta": 1e-6, "confidence": 0.95}
ROUNDS, RATE = 20, 0.05


def family(kind="one-pass", z=1.0):
    return Family(
        find("gaussian", kind),
        ((z, ROUNDS),),
        {"kind": kind, "rounds": ROUNDS, "rate": RATE},
    )


FAMILIES = {kind: family(kind) for kind in ("one-pass", "balls-and-bins", "poisson")}


def drawn(kind, count, seed, z=1.0, present=None):
    """(coins, log-likelihood ratios) of draws of the sampler itself, without any
    account.
    """
    rng = np.random.default_rng(seed)
    coins = (
        rng.integers(2, size=count).astype(bool)
        if present is None
        else np.full(count, present)
    )
    x = z * rng.normal(size=(count, 1 if kind == "one-pass" else ROUNDS))
    if kind == "poisson":
        x += coins[:, None] * (rng.random(x.shape) < RATE)
    else:
        x[np.arange(count), rng.integers(x.shape[1], size=count)] += coins
    ratio = np.exp((2 * x - 1) / (2 * z * z))
    return coins, np.log(1 + RATE * (ratio - 1)).sum(
        1
    ) if kind == "poisson" else np.log(ratio.mean(1))


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_curve_is_the_samplers(kind):
    """Of 100,000 draws each; four deviations of a rate at eight places have a chance
    below 1e-3.
    """
    seen, unseen = (
        np.sort(drawn(kind, 100_000, 1, present=present)[1])
        for present in (True, False)
    )
    events = Events.planned(
        ((1.0, ROUNDS),), {"rounds": ROUNDS, "rate": RATE, "kind": kind}
    )
    table = posteriors(find("gaussian", kind).curve(events))
    assert (np.diff(table) <= 0).all()
    told = np.append(0.0, np.cumsum(table)) / len(
        table
    )  # half the true positives, over u
    for threshold in np.quantile(unseen, [0.05, 0.2, 0.35, 0.5, 0.7, 0.9, 0.98, 0.999]):
        above = [
            1 - np.searchsorted(side, threshold) / len(side) for side in (seen, unseen)
        ]
        found = 2 * np.interp(sum(above) / 2, np.linspace(0, 1, len(told)), told)
        assert found == pytest.approx(above[0], abs=4 * math.sqrt(0.25 / 1e5) + 2e-4)


def test_deltas_are_those_of_epsilon():
    """What `upper_epsilon` gives at a delta has that delta on the curve, to the grids'
    precision, and nothing less.
    """
    for delta in (1e-3, 1e-2):
        for epsilon, deltas in (
            (
                balls_and_bins.upper_epsilon(1.0, 20, 15, delta),
                lambda e: balls_and_bins.upper_deltas(1.0, 20, 15, e),
            ),
            (
                poisson.upper_epsilon(((1.0, 20),), 0.05, delta),
                lambda e: poisson.upper_deltas(((1.0, 20),), 0.05, e),
            ),
        ):
            removal, addition = (
                float(values[0]) for values in deltas(np.array([epsilon]))
            )
            assert max(removal, addition) == pytest.approx(delta, rel=2e-3)
    # Where noise is too little for a grid: what is proven for one Gaussian, or for all of
    # them.
    near = balls_and_bins.upper_deltas(0.04, 20, 10, np.array([1.0]))
    assert near[0] == near[1] == pytest.approx(gaussian_delta(0.04, 1.0) / 2)
    near = poisson.upper_deltas(((0.1, 4),), 0.5, np.array([1.0]))
    assert near[0] == near[1] == pytest.approx(gaussian_delta(0.05, 1.0))


def test_posteriors_by_hand():
    """Randomised response at ln 3 answers rightly in 3 of 4: the higher half has 3/4,
    the lower 1/4.
    """
    table = posteriors(Curve(np.log([3.0]), np.zeros(1), np.zeros(1)))
    half = len(table) // 2
    assert table[:half] == pytest.approx(0.75) and table[half:] == pytest.approx(0.25)
    # One that tells all with a chance of 1/10 and else nothing, when present: u = 1/20
    # are surely there.
    table = posteriors(
        Curve(
            np.array([0.0, 20.0, math.inf]),
            np.array([0.1, 0.1, 0.1]),
            np.array([0.1, 0.0526, 0.0]),
        )
    )
    assert table[0] == pytest.approx(1.0, abs=1e-8) and table[-1] < 0.5
    # A Gaussian, exactly: at threshold t of the likelihood ratio's place.
    table, t = (
        posteriors(
            Curve(EPSILONS, *[np.array([gaussian_delta(1.0, e) for e in EPSILONS])] * 2)
        ),
        0.8,
    )
    place = (ndtr(-t) + ndtr(1 - t)) / 2
    assert table[int(place * len(table))] == pytest.approx(
        1 / (1 + math.exp(0.5 - t)), abs=0.01
    )


def test_few_lines_are_a_curve_of_more_leak():
    """An analysis that says only epsilon at a delta: above the exact curve everywhere,
    and not far.
    """

    class Few(Accountant):
        def high(self, events, delta):
            return gaussian_epsilon(events.ends[0], delta)

    events = Events.planned(((1.0, 1),), {})
    few, exact = (
        np.cumsum(posteriors(accountant.curve(events))) / (1 << 14)
        for accountant in (Few(), find("gaussian", "one-pass"))
    )
    assert (
        (few >= exact - 1e-4).all()
        and few.max() - 0.5 < 1e-2
        and (few - exact).max() < 0.02
    )


@pytest.mark.parametrize("kind", FAMILIES)
def test_draws_have_the_law_of_the_attack_itself(kind):
    """Kolmogorov and Smirnov, 399 of each; false alarm 1e-3 each. A leak a fifth larger
    is told from it.
    """
    test = RankTest(
        FAMILIES[kind], 400, confidence=0.95, generator=np.random.default_rng(0)
    )
    made = []
    for seed in range(399):
        coins, scores = drawn(kind, 400, seed)
        made.append(test.statistic(coins[np.argsort(-scores)]))
    assert stats.ks_2samp(made, test.draws(1.0)).pvalue > 1e-3
    assert stats.ks_2samp(made, test.draws(1.2)).pvalue < 1e-3


@pytest.mark.parametrize("kind", FAMILIES)
def test_it_errs_as_often_as_it_says(kind):
    """400 audits of a member of the family: between 6 and 40 above it, or chance below
    2e-4; with the worse score of who sees but whether a ratio is above its middle, no
    oftener.
    """
    above = np.zeros(2)
    for seed in range(400):
        coins, scores = drawn(kind, 200, 5000 + seed)
        test = RankTest(
            FAMILIES[kind], 200, confidence=0.95, generator=np.random.default_rng(seed)
        )
        limit = test.critical(1.0)
        for index, made in enumerate((scores, 1.0 * (scores > np.median(scores)))):
            above[index] += (
                test.statistic(coins[np.argsort(-made, kind="stable")]) > limit
            )
    assert stats.binom.sf(40, 400, 0.05) < 1e-4 and stats.binom.cdf(5, 400, 0.05) < 1e-4
    assert 6 <= above[0] <= 40 and above[1] <= 40


def test_without_a_leak_the_bound_is_zero_in_95_percent():
    """400 nulls: more than 40 false alarms of 5 % have a chance below 1e-4."""
    above = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        test = RankTest(FAMILIES["balls-and-bins"], 200, confidence=0.95, generator=rng)
        above += test.statistic(rng.integers(2, size=200).astype(bool)) > test.critical(
            0.0
        )
    assert above <= 40 and test.refuted(test.critical(0.0)) == 0


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_ideal_attacker_shows_the_ideal_in_half_of_all_audits(kind):
    """100 audits with the exact ratio: fewer than 30 or more than 70 above have a
    chance below 1e-4 of a true half; the ideal, a median of 399 draws, is itself off by
    up to 4 % of chance.
    """
    audits = []
    for seed in range(100):
        coins, scores = drawn(kind, 1000, 9000 + seed)
        test = RankTest(
            FAMILIES[kind], 1000, confidence=0.95, generator=np.random.default_rng(3)
        )
        audits.append(
            test.statistic(coins[np.argsort(-scores)]) > np.median(test.draws(1.0))
        )
    assert 30 <= sum(audits) <= 70
    bound = rank_test(
        scores, coins, FAMILIES[kind], generator=np.random.default_rng(3), **AT
    )
    assert 0 < bound.ideal < FAMILIES[kind].epsilon(1.0, 1e-6)


def test_no_test_could_show_much_more_of_one_gaussian():
    """Of n present and n absent the best test of a mean shift at 95 % shows mu - 1.645
    sqrt(2 / n) in half of all.
    """
    coins, scores = drawn("one-pass", 4000, 7)
    bound = rank_test(
        scores, coins, FAMILIES["one-pass"], generator=np.random.default_rng(0), **AT
    )
    best = gaussian_epsilon(1 / (1 - 1.645 * math.sqrt(2 / 2000)), 1e-6)
    assert 0.97 * best < bound.ideal < 1.02 * best
    assert (
        rank_test(
            -scores,
            coins,
            FAMILIES["one-pass"],
            generator=np.random.default_rng(0),
            **AT,
        ).epsilon
        == 0
    )


def test_more_than_the_largest_leak_is_named_as_such():
    coins = np.random.default_rng(0).integers(2, size=50_000).astype(bool)
    loud = family(z=0.5)
    loud.largest = 1.5
    bound = rank_test(
        coins * 1.0, coins, loud, generator=np.random.default_rng(0), **AT
    )
    assert (
        bound.epsilon == pytest.approx(gaussian_epsilon(0.5 / 1.5, 1e-6))
        and "higher" in bound.reason
    )
    assert bound.numbers["chance_of_as_much"] < 1e-12


def test_a_high_confidence_has_the_draws_it_takes():
    test = RankTest(
        FAMILIES["one-pass"], 50, confidence=0.999, generator=np.random.default_rng(0)
    )
    draws = test.draws(1.0)
    assert len(draws) == 9999 and sum(draws > test.critical(1.0)) <= 9
