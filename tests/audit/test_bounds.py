"""Bounds: against hand-computed values, other libraries, and mechanisms whose epsilon is known."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from dpfedbench.accounting.gaussian import gaussian_epsilon
from dpfedbench.audit.bounds import (
    Curves,
    Gaussian,
    Guesses,
    clopper_pearson,
    gaussian_shift,
    guess,
    guess_surest,
    one_run_dp,
    one_run_f_dp,
    refutes,
)
from dpfedbench.errors import BenchError

AT = {"delta": 1e-6, "confidence": 0.95}


def released(mu, coins, seed):
    """(coins, scores) of one Gaussian release a coin."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(2, size=coins).astype(bool)
    return drawn, rng.normal(size=coins) + mu * drawn


def test_guesses_are_the_surest():
    """By hand: of 6 scores the two highest are called present, the two lowest absent; one of these is wrong."""
    scores = np.array([0.9, -2.0, 3.0, 0.0, -1.0, 2.0])
    coins = np.array([True, False, True, True, True, True])
    assert guess(scores, coins, 4) == Guesses(coins=6, made=4, right=3)
    assert guess(scores, coins, 3, both=False) == Guesses(coins=6, made=3, right=3)
    for secret, made in ((False, {4000: 400, 500: 100, 60: 60}), (True, {4000: 200, 500: 100, 60: 60})):
        found = {n: guess_surest(np.zeros(n), np.zeros(n, bool), secret=secret) for n in made}
        assert {n: guesses.made for n, guesses in found.items()} == made
        assert found[60].right == (0 if secret else 30)
    with pytest.raises(BenchError, match="guesses"):
        Guesses(coins=10, made=4, right=5)


def test_all_right_without_delta_is_the_binomial_by_hand():
    """With delta 0 and r of r right: p^r = 0.05 at p = 0.05^(1/r), and epsilon is p's logit."""
    p = 0.05 ** (1 / 100)
    found = one_run_dp(Guesses(coins=200, made=100, right=100), delta=0.0, confidence=0.95)
    assert found.epsilon == pytest.approx(math.log(p / (1 - p)), abs=1e-4)
    # Half of the guesses right is no evidence; delta makes evidence weaker.
    assert one_run_dp(Guesses(coins=200, made=100, right=50), **AT).epsilon == 0
    guesses = Guesses(coins=1000, made=100, right=90)
    weaker = [one_run_dp(guesses, delta=delta, confidence=0.95).epsilon for delta in (0.0, 1e-5, 1e-3)]
    assert weaker[0] > weaker[1] > weaker[2] > 0


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("made", [20, 200])
def test_f_dp_refutes_nothing_that_randomised_response_can_do(epsilon, made):
    """Randomised response is epsilon-DP, and its right guesses are binomial: a refuted count has a tail below 5 %."""
    rate = 1 / (1 + math.exp(-epsilon))

    def inverse(y):
        # y <= e^eps x, and the same of the complements.
        return max(0.0, y * math.exp(-epsilon), 1 - math.exp(epsilon) * (1 - y))

    refuted = [k for k in range(made + 1) if refutes(Guesses(coins=made, made=made, right=k), inverse, 0.95)]
    assert all(stats.binom.sf(k - 1, made, rate) <= 0.05 for k in refuted)
    if rate**made < 1e-3:
        assert made in refuted


def test_the_gaussian_family_as_curves_is_the_gaussian_family():
    curves = Curves("lines", lambda leak, delta: gaussian_epsilon(1 / leak, delta), 20.0)
    for leak in (0.3, 1.0, 3.0):
        lines, exact = curves.inverse(leak), Gaussian().inverse(leak)
        for y in np.linspace(0.001, 0.999, 200):
            assert lines(y) <= exact(y) + 1e-12
            # Few guesses are made, so that the curve is asked for at small y.
            assert y > 0.5 or lines(y) >= exact(y) - 0.03
    guesses = Guesses(coins=2000, made=200, right=185)
    by_lines, by_formula = one_run_f_dp(guesses, curves, **AT), one_run_f_dp(guesses, Gaussian(), **AT)
    assert by_lines.epsilon <= by_formula.epsilon + 1e-6
    assert by_lines.epsilon > 0.85 * by_formula.epsilon


def test_one_run_bounds_of_a_gaussian_are_below_it_and_not_far():
    """100 seeds. At 95 % five could exceed by chance; that none does is the bounds' slack (2,000 coins, mu = 1)."""
    proved = gaussian_epsilon(1.0, 1e-6)
    found = []
    for seed in range(100):
        coins, scores = released(1.0, 2000, seed)
        guesses = guess_surest(scores, coins, secret=False)
        found.append([one_run_f_dp(guesses, Gaussian(), **AT).epsilon, one_run_dp(guesses, **AT).epsilon])
    assert np.max(found) <= proved
    assert np.median(found, axis=0)[0] > 0.55 * proved
    assert (np.array(found)[:, 0] > np.array(found)[:, 1]).all()


def test_score_bounds_cover():
    """1,000 seeds at mu = 0.5, 300 coins: more than 78 above the truth has a chance below 1e-4 at 95 %."""
    proved, above = gaussian_epsilon(2.0, 1e-6), np.zeros(2)
    for seed in range(1000):
        coins, scores = released(0.5, 300, seed)
        shift = gaussian_shift(scores[coins], scores[~coins], **AT)
        split = clopper_pearson(scores[coins], scores[~coins], generator=np.random.default_rng(seed), **AT)
        above += [shift.epsilon > proved, split.epsilon > proved]
    assert stats.binom.sf(78, 1000, 0.05) < 1e-4
    assert (above <= 78).all()


def test_the_mean_shift_by_hand():
    """Scores 0, 2 and 10, 12: shift 10, pooled variance (2 + 2) / 2 = 2, t and chi-squared of two degrees at 2.5 %."""
    found = gaussian_shift(np.array([10.0, 12.0]), np.array([0.0, 2.0]), **AT)
    least = 10 - 4.302653 * math.sqrt(2) * 1
    widest = math.sqrt(4 / 0.0506356)
    assert found.found["shift"] == pytest.approx(10) and found.found["deviation"] == pytest.approx(math.sqrt(2))
    assert found.found["leak"] == pytest.approx(least / widest, rel=1e-5)
    assert found.epsilon == pytest.approx(gaussian_epsilon(widest / least, 1e-6), rel=1e-5)
    # Scores beyond double precision's squares, and a side without canaries.
    assert gaussian_shift(np.array([1e300, 1.1e300]), np.array([0.0, 1.0]), **AT).epsilon > 0
    absent = gaussian_shift(np.array([1.0]), np.array([0.0, 1.0]), **AT)
    assert math.isnan(absent.epsilon) and "fewer than two" in absent.reason


def test_clopper_pearson_is_scipys_limits_of_the_half_left_out():
    coins, scores = released(3.0, 2000, 1)
    found = clopper_pearson(scores[coins], scores[~coins], generator=np.random.default_rng(0), **AT)
    trials, nulls = found.found["trials"], found.found["nulls"]
    hits, alarms = round(found.found["power"] * trials), round(found.found["false_alarms"] * nulls)
    power = stats.binomtest(hits, trials).proportion_ci(0.95).low
    false = stats.binomtest(alarms, nulls).proportion_ci(0.95).high
    assert found.epsilon == pytest.approx(math.log((power - 1e-6) / false), rel=1e-9)
    assert 2 < found.epsilon < gaussian_epsilon(1 / 3, 1e-6)
    # The same with the worlds' roles changed, and scores that all differ from world to world.
    back = clopper_pearson(-scores[~coins], -scores[coins], generator=np.random.default_rng(0), **AT)
    assert back.epsilon == pytest.approx(found.epsilon, rel=0.3)
    apart = clopper_pearson(np.full(500, 1.0), np.zeros(500), generator=np.random.default_rng(0), **AT)
    # By hand: 250 of 250 and 0 of 250; the limits are 0.025^(1/250) and one less that.
    limit = 0.025 ** (1 / 250)
    assert apart.epsilon == pytest.approx(math.log((limit - 1e-6) / (1 - limit)), rel=1e-9)


def test_without_a_leak_every_bound_is_zero_in_95_percent():
    """400 nulls: more than 37 false alarms of 5 % each have a chance below 1e-3."""
    alarms = np.zeros(4)
    for seed in range(400):
        coins, scores = released(0.0, 500, 10_000 + seed)
        guesses = guess_surest(scores, coins, secret=seed % 2 == 0)
        alarms += [
            one_run_f_dp(guesses, Gaussian(), **AT).epsilon > 0,
            one_run_dp(guesses, **AT).epsilon > 0,
            gaussian_shift(scores[coins], scores[~coins], **AT).epsilon > 0,
            clopper_pearson(
                scores[coins], scores[~coins], generator=np.random.default_rng(seed), **AT
            ).epsilon > 0,
        ]  # fmt: skip
    assert stats.binom.sf(37, 400, 0.05) < 1e-3
    assert (alarms <= 37).all()


def test_the_largest_leaks_are_named_as_such():
    everything = Guesses(coins=100_000, made=100_000, right=100_000)
    found = one_run_f_dp(everything, Curves("lines", lambda leak, delta: gaussian_epsilon(1 / leak, delta), 1.0), **AT)
    assert found.found["leak"] == 1.0 and "higher" in found.reason
    assert Gaussian().inverse(1.0)(0.5) == pytest.approx(ndtr(-1.0))
