"""Lower bounds of epsilon: values by hand, scipy's limits, and false-alarm rates."""

import math

import numpy as np
import pytest
from scipy import stats

from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError
from dpsum.audit.bounds import (
    Guesses,
    clopper_pearson,
    guess,
    guess_surest,
    most_of,
    one_run_dp,
)

TEST = {"delta": 1e-6, "confidence": 0.95}


def draw_scores(mu, coins, seed):
    """Return coins, and scores of one Gaussian release for each coin."""
    rng = np.random.default_rng(seed)
    present = rng.random(coins) < 0.5
    return present, rng.normal(size=coins) + mu * present


def split_bound(coins, scores, seed=0):
    generator = np.random.default_rng(seed)
    return clopper_pearson(scores[coins], scores[~coins], generator=generator, **TEST)


def test_guess_takes_the_surest_scores():
    """By hand: of 6 scores the two highest are called present, the two lowest absent;
    one of these is wrong.
    """
    scores = np.array([0.9, -2.0, 3.0, 0.0, -1.0, 2.0])
    coins = np.array([True, False, True, True, True, True])
    assert guess(scores, coins, 4) == Guesses(coins=6, guessed=4, right=3)
    assert guess(scores, coins, 3, both=False) == Guesses(coins=6, guessed=3, right=3)
    with pytest.raises(DpsumError, match="guesses"):
        Guesses(coins=10, guessed=4, right=5)


def test_guess_surest_fixes_the_number_of_guesses():
    guessed = [
        guess_surest(np.zeros(coins), np.zeros(coins, bool), secret=secret)
        for coins in (4000, 60)
        for secret in (False, True)
    ]
    counts = [(guesses.guessed, guesses.right) for guesses in guessed]
    assert counts == [(400, 200), (200, 0), (60, 30), (60, 0)]


def test_one_run_bound_of_perfect_guesses_is_the_binomial_limit():
    """With delta 0 and r of r right: p^r = 0.05, and epsilon is p's logit."""
    p = 0.05 ** (1 / 100)
    perfect = Guesses(coins=200, guessed=100, right=100)
    epsilon = one_run_dp(perfect, delta=0.0, confidence=0.95).epsilon
    assert epsilon == pytest.approx(math.log(p / (1 - p)), abs=1e-4)
    half_right = Guesses(coins=200, guessed=100, right=50)
    assert one_run_dp(half_right, **TEST).epsilon == 0


def test_one_run_bound_falls_with_delta():
    guesses = Guesses(coins=1000, guessed=100, right=90)
    none, small, large = (
        one_run_dp(guesses, delta=delta, confidence=0.95).epsilon
        for delta in (0.0, 1e-5, 1e-3)
    )
    assert none > small > large > 0


def test_clopper_pearson_exceeds_the_truth_no_oftener_than_stated():
    """1,000 seeds at mu = 0.5, 300 coins: more than 78 above the truth has a chance
    below 1e-4 at 95 %.
    """
    truth = gaussian_epsilon(2.0, 1e-6)
    alarms = sum(
        split_bound(*draw_scores(0.5, 300, seed), seed).epsilon > truth
        for seed in range(1000)
    )
    assert stats.binom.sf(78, 1000, 0.05) < 1e-4
    assert alarms <= 78


def test_clopper_pearson_has_scipys_limits_of_the_other_half():
    coins, scores = draw_scores(3.0, 2000, 1)
    bound = split_bound(coins, scores)
    trials = bound.numbers["trials"]
    nulls = bound.numbers["nulls"]
    hits = round(bound.numbers["power"] * trials)
    alarms = round(bound.numbers["false_alarms"] * nulls)
    power = stats.binomtest(hits, trials).proportion_ci(0.95).low
    false_alarms = stats.binomtest(alarms, nulls).proportion_ci(0.95).high
    expected = math.log((power - 1e-6) / false_alarms)
    assert bound.epsilon == pytest.approx(expected, rel=1e-9)
    assert 2 < bound.epsilon < gaussian_epsilon(1 / 3, 1e-6)
    exchanged = split_bound(~coins, -scores)
    assert exchanged.epsilon == pytest.approx(bound.epsilon, rel=0.3)


def test_clopper_pearson_of_separate_scores_by_hand():
    """250 of 250 and 0 of 250: the limits are 0.025^(1/250) and one less that."""
    coins = np.arange(1000) < 500
    bound = split_bound(coins, coins * 1.0)
    limit = 0.025 ** (1 / 250)
    expected = math.log((limit - 1e-6) / (1 - limit))
    assert bound.epsilon == pytest.approx(expected, rel=1e-9)
    assert most_of(250, 250, **TEST) == bound.epsilon


def test_bounds_without_a_leak_are_zero_in_95_percent():
    """400 nulls: more than 37 false alarms of 5 % each have a chance below 1e-3."""
    one_run_alarms = 0
    split_alarms = 0
    for seed in range(400):
        coins, scores = draw_scores(0.0, 500, 10_000 + seed)
        guesses = guess_surest(scores, coins, secret=seed % 2 == 0)
        one_run_alarms += one_run_dp(guesses, **TEST).epsilon > 0
        split_alarms += split_bound(coins, scores, seed).epsilon > 0
    assert stats.binom.sf(37, 400, 0.05) < 1e-3
    assert max(one_run_alarms, split_alarms) <= 37
