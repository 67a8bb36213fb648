"""Bounds: against hand-computed values, other libraries, and mechanisms whose epsilon
is known.
"""

import math

import numpy as np
import pytest
from scipy import stats

from dpfedbench.errors import BenchError
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.audit.bounds import (
    Guesses,
    clopper_pearson,
    guess,
    guess_surest,
    most_of,
    one_run_dp,
)

AT = {"delta": 1e-6, "confidence": 0.95}


def released(mu, coins, seed):
    """(coins, scores) of one Gaussian release a coin."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(2, size=coins).astype(bool)
    return drawn, rng.normal(size=coins) + mu * drawn


def test_guesses_are_the_surest():
    """By hand: of 6 scores the two highest are called present, the two lowest absent;
    one of these is wrong.
    """
    scores = np.array([0.9, -2.0, 3.0, 0.0, -1.0, 2.0])
    coins = np.array([True, False, True, True, True, True])
    assert guess(scores, coins, 4) == Guesses(coins=6, guessed=4, right=3)
    assert guess(scores, coins, 3, both=False) == Guesses(coins=6, guessed=3, right=3)
    for secret, made in (
        (False, {4000: 400, 500: 100, 60: 60}),
        (True, {4000: 200, 500: 100, 60: 60}),
    ):
        found = {
            n: guess_surest(np.zeros(n), np.zeros(n, bool), secret=secret) for n in made
        }
        assert {n: guesses.guessed for n, guesses in found.items()} == made
        assert found[60].right == (0 if secret else 30)
    with pytest.raises(BenchError, match="guesses"):
        Guesses(coins=10, guessed=4, right=5)


def test_all_right_without_delta_is_the_binomial_by_hand():
    """With delta 0 and r of r right: p^r = 0.05 at p = 0.05^(1/r), and epsilon is p's
    logit.
    """
    p = 0.05 ** (1 / 100)
    found = one_run_dp(
        Guesses(coins=200, guessed=100, right=100), delta=0.0, confidence=0.95
    )
    assert found.epsilon == pytest.approx(math.log(p / (1 - p)), abs=1e-4)
    # Half of the guesses right is no evidence; delta makes evidence weaker.
    assert one_run_dp(Guesses(coins=200, guessed=100, right=50), **AT).epsilon == 0
    guesses = Guesses(coins=1000, guessed=100, right=90)
    weaker = [
        one_run_dp(guesses, delta=delta, confidence=0.95).epsilon
        for delta in (0.0, 1e-5, 1e-3)
    ]
    assert weaker[0] > weaker[1] > weaker[2] > 0


def test_score_bounds_cover():
    """1,000 seeds at mu = 0.5, 300 coins: more than 78 above the truth has a chance
    below 1e-4 at 95 %.
    """
    proved, above = gaussian_epsilon(2.0, 1e-6), 0
    for seed in range(1000):
        coins, scores = released(0.5, 300, seed)
        split = clopper_pearson(
            scores[coins], scores[~coins], generator=np.random.default_rng(seed), **AT
        )
        above += split.epsilon > proved
    assert stats.binom.sf(78, 1000, 0.05) < 1e-4
    assert above <= 78


def test_clopper_pearson_is_scipys_limits_of_the_half_left_out():
    coins, scores = released(3.0, 2000, 1)
    found = clopper_pearson(
        scores[coins], scores[~coins], generator=np.random.default_rng(0), **AT
    )
    trials, nulls = found.numbers["trials"], found.numbers["nulls"]
    hits, alarms = (
        round(found.numbers["power"] * trials),
        round(found.numbers["false_alarms"] * nulls),
    )
    power = stats.binomtest(hits, trials).proportion_ci(0.95).low
    false = stats.binomtest(alarms, nulls).proportion_ci(0.95).high
    assert found.epsilon == pytest.approx(math.log((power - 1e-6) / false), rel=1e-9)
    assert 2 < found.epsilon < gaussian_epsilon(1 / 3, 1e-6)
    # The same with the worlds' roles changed, and scores that all differ from world to
    # world.
    back = clopper_pearson(
        -scores[~coins], -scores[coins], generator=np.random.default_rng(0), **AT
    )
    assert back.epsilon == pytest.approx(found.epsilon, rel=0.3)
    apart = clopper_pearson(
        np.full(500, 1.0), np.zeros(500), generator=np.random.default_rng(0), **AT
    )
    # By hand: 250 of 250 and 0 of 250; the limits are 0.025^(1/250) and one less that.
    limit = 0.025 ** (1 / 250)
    assert apart.epsilon == pytest.approx(
        math.log((limit - 1e-6) / (1 - limit)), rel=1e-9
    )
    assert most_of(250, 250, **AT) == apart.epsilon


def test_without_a_leak_every_bound_is_zero_in_95_percent():
    """400 nulls: more than 37 false alarms of 5 % each have a chance below 1e-3."""
    alarms = np.zeros(2)
    for seed in range(400):
        coins, scores = released(0.0, 500, 10_000 + seed)
        guesses = guess_surest(scores, coins, secret=seed % 2 == 0)
        alarms += [
            one_run_dp(guesses, **AT).epsilon > 0,
            clopper_pearson(
                scores[coins],
                scores[~coins],
                generator=np.random.default_rng(seed),
                **AT,
            ).epsilon
            > 0,
        ]
    assert stats.binom.sf(37, 400, 0.05) < 1e-3
    assert (alarms <= 37).all()
