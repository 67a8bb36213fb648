"""Balls-and-bins: closed forms, an integral, Monte Carlo, and the table of PRIVACY.md."""

import math

import mpmath
import numpy as np
import pytest
from scipy import integrate
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import norm

from dploss.fine_brackets import is_wide
from dploss.gaussian import gaussian_epsilon
from dploss.renyi import epsilon_of
from dploss.renyi import renyi as sampled_renyi
from dpsum.accounting.analyses import balls_and_bins, poisson
from dpsum.accounting.analyses.balls_and_bins import lower_epsilon, renyi, upper_epsilon
from tests.dploss.helpers import DIGITS, exact_tail, relative_errors
from tests.dpsum.accounting.helpers import (
    bracket,
    delta_interval,
    sampled_gaussian_epsilon,
)

T = 250
DELTA = 1e-6


@pytest.mark.parametrize(
    ("z", "printed", "unit", "exact"),
    [
        (1.0, 0.4525, 1e-4, 0.452409),
        (2.0, 0.125, 1e-3, 0.124957),
        (3.0, 0.078, 1e-3, 0.0775),
    ],
)
def test_balls_and_bins_one_pass_table(z, printed, unit, exact):
    """PRIVACY.md prints upper ends, to one unit of the last digit."""
    low, high = bracket(balls_and_bins, z, T, T, DELTA)
    assert low <= exact <= high <= low + 1e-3
    assert abs(high - printed) <= unit
    assert high <= poisson.upper_epsilon(((z, T),), 1 / T, DELTA)


@pytest.mark.parametrize("z", [0.7, 1.0, 4.0])
@pytest.mark.parametrize("rounds", [1, 7, 250])
def test_balls_and_bins_of_one_round_is_one_sampled_gaussian(z, rounds):
    exact = sampled_gaussian_epsilon(z, 1 / rounds, "1e-5")
    low, high = bracket(balls_and_bins, z, rounds, 1, 1e-5)
    tolerance = 1e-3 * max(exact, 0.1)
    assert exact - tolerance <= low <= exact + 1e-12
    assert exact - 1e-12 <= high <= exact + tolerance


@pytest.mark.parametrize(
    ("z", "rounds", "done"), [(1.0, 25, 25), (1.0, 25, 10), (2.0, 12, 12)]
)
def test_balls_and_bins_by_monte_carlo(z, rounds, done):
    """400,000 runs a side, delta = 1e-3; 5 standard errors, false alarm 1e-6. Removal
    is E_P (1 - e^(eps - L))+, addition E_Q (1 - e^(eps + L))+, L = log dP/dQ.
    """
    rng = np.random.default_rng(0)
    runs = 400_000
    delta = 1e-3
    low, high = bracket(balls_and_bins, z, rounds, done, delta)
    releases = z * rng.standard_normal((runs, done))

    def losses():
        ratios = np.exp((releases - 0.5) / z**2).sum(axis=1) / rounds
        return np.log((rounds - done) / rounds + ratios)

    absent_losses = losses()
    bins = rng.integers(rounds, size=runs)
    in_time = np.flatnonzero(bins < done)
    releases[in_time, bins[in_time]] += 1.0
    present_losses = losses()
    assert low <= high <= low + 1e-3
    assert delta_interval(present_losses, high)[0] <= delta
    assert delta_interval(-absent_losses, high)[0] <= delta
    least, most = delta_interval(present_losses, low)
    assert most >= delta
    assert most - least < 0.6 * delta
    # A claim of a fifth less is refuted.
    assert delta_interval(present_losses, 0.8 * low)[0] > delta


@pytest.mark.parametrize("z", [1.0, 2.0, 3.0])
def test_balls_and_bins_at_the_papers_scale_by_importance_sampling(z):
    """T = 250, delta = 1e-6: delta(P||Q) = E_Q (S - T e^eps)+ / T, 60,000 sums; 6
    standard errors, false alarm 1e-8. Half the draws move one summand's normal up,
    half all of them; they are weighted by the ratio of densities.
    """
    rng = np.random.default_rng(1)
    runs = 60_000
    low, high = bracket(balls_and_bins, z, T, T, DELTA)
    one_shift = 1.0 / z + (2.8 if z == 1.0 else 1.0)
    all_shift = z * high
    x = rng.standard_normal((runs, T))
    is_one = rng.random(runs) < 0.5
    x[is_one, rng.integers(T, size=int(is_one.sum()))] += one_shift
    x[~is_one] += all_shift
    weights = 0.5 * np.exp(one_shift * x - one_shift**2 / 2).mean(axis=1)
    weights += 0.5 * np.exp(all_shift * x.sum(axis=1) - T * all_shift**2 / 2)
    sums = np.exp(x / z - 1 / (2 * z * z)).sum(axis=1)

    def estimate(epsilon):
        values = np.maximum(sums - T * math.exp(epsilon), 0.0) / T / weights
        error = 6 * values.std() / math.sqrt(runs)
        return values.mean() - error, values.mean() + error

    assert estimate(high)[0] <= DELTA
    least, most = estimate(low)
    assert most >= DELTA
    assert most - least < 0.6 * DELTA
    # A claim of a twentieth less is refuted.
    assert estimate(0.95 * low)[0] > DELTA


def test_renyi_of_one_bin_is_gaussian_and_of_one_round_poisson():
    """alpha / (2 z^2), and P = (1 - 1/T) N(0, z^2) + (1/T) N(1, z^2)."""
    orders = (2, 3, 5, 17)
    expected = np.array(orders) / (2 * 1.5**2)
    np.testing.assert_allclose(renyi(1.5, 1, 1, orders), expected, rtol=1e-8)
    for rounds in (5, 40):
        expected = sampled_renyi(1.2, 1 / rounds, orders)
        divergences = renyi(1.2, rounds, 1, orders)
        np.testing.assert_allclose(divergences, expected, rtol=1e-6, atol=1e-9)


def test_renyi_of_balls_and_bins_by_monte_carlo():
    """T = 6, t = 4, z = 2, order 3, both directions; 400,000 draws, 5 standard errors,
    false alarm 1e-6.
    """
    z = 2.0
    rounds = 6
    done = 4
    order = 3
    x = z * np.random.default_rng(2).standard_normal((400_000, done))
    ratio = (rounds - done) / rounds + np.exp((x - 0.5) / z**2).sum(axis=1) / rounds
    moment = math.exp((order - 1) * renyi(z, rounds, done, (order,))[0])
    samples = ratio**order, ratio ** (1 - order)
    for values in samples:
        assert values.mean() <= moment + 5 * values.std() / math.sqrt(len(values))
    assert moment == pytest.approx(max(map(np.mean, samples)), rel=5e-3)


@pytest.mark.parametrize(
    ("z", "rounds", "done"), [(2.0, 40, 17), (1.0, 250, 250), (0.5, 12, 12)]
)
def test_renyi_epsilon_is_above_the_low_end_and_grows_with_rounds(z, rounds, done):
    orders = tuple(range(2, 65))
    divergences = renyi(z, rounds, done, orders)
    epsilon = epsilon_of(divergences, orders, DELTA, tight=True)
    assert epsilon >= lower_epsilon(z, rounds, done, DELTA)
    assert (divergences >= renyi(z, rounds, done - 1, orders)).all()
    assert not renyi(z, rounds, 0, orders).any()


def test_balls_and_bins_is_monotone_and_never_above_one_gaussian():
    by_done = [upper_epsilon(1.0, T, done, DELTA) for done in (0, 1, 5, 50, 150, 250)]
    assert by_done == sorted(by_done)
    assert by_done[0] == 0.0
    by_rounds = [upper_epsilon(1.0, rounds, rounds, DELTA) for rounds in (1, 4, 400)]
    assert by_rounds == sorted(by_rounds, reverse=True)
    noise = (0.01, 0.1, 0.3, 0.5, 1.0, 2.0, 10.0)
    by_noise = [upper_epsilon(z, T, T, DELTA) for z in noise]
    assert by_noise == sorted(by_noise, reverse=True)
    assert (by_noise <= np.array([gaussian_epsilon(z, DELTA) for z in noise])).all()


def call_price(strike, s):
    """Return E (X - K)+ of a log-normal X of mean one, by Black and Scholes."""
    position = np.log(np.maximum(strike, 1e-300)) / s
    return ndtr(s / 2 - position) - strike * ndtr(-s / 2 - position)


@pytest.mark.parametrize("z", [3.0, 1.0, 0.5, 0.4, 0.3])
def test_balls_and_bins_of_two_rounds_is_a_quadrature(z):
    """E (X + Y - K)+ for independent log-normals of mean one: given X, a call."""
    s = 1 / z
    normal = np.linspace(-12, 12, 20_001)
    first = np.exp(s * normal - s * s / 2)

    def removal(epsilon):
        gains = call_price(2 * math.exp(epsilon) - first, s)
        return integrate.simpson(gains * norm.pdf(normal), x=normal) / 2

    exact = brentq(lambda epsilon: removal(epsilon) - DELTA, 0.0, 40.0, xtol=1e-9)
    low, high = bracket(balls_and_bins, z, 2, 2, DELTA)
    assert low <= exact + 1e-6
    assert exact - 1e-6 <= high < low + 1e-3 * max(exact, 1.0)
    if z == 0.5:
        assert exact == pytest.approx(10.304, abs=1e-3)


def test_addition_is_bounded_where_no_grid_is_made():
    """delta(Q||P) of T = 2, z = 0.5 at eps = 10.3: (e^eps / T) E (K - X - Y)+ by
    quadrature over X; given X it is a put's value in Black and Scholes' formula.
    """
    epsilon = 10.3
    z = 0.5
    strike = 2 * math.exp(-epsilon)
    s = 1 / z
    normal = np.linspace(-12, (math.log(strike) + s * s / 2) / s, 20_001)[:-1]
    rest = strike - np.exp(s * normal - s * s / 2)
    position = np.log(rest) / s
    gains = rest * ndtr(position + s / 2) - ndtr(position - s / 2)
    exact = (
        math.exp(epsilon) / 2 * integrate.simpson(gains * norm.pdf(normal), x=normal)
    )
    assert 0 < exact <= balls_and_bins._all_small(z, 2, 2, epsilon) <= 1e-8


@pytest.mark.parametrize("delta", [1e-5, 1e-10, 1e-100])
@pytest.mark.parametrize("done", [1, 50, 100])
@pytest.mark.parametrize("z", [0.05, 0.2])
def test_balls_and_bins_bracket_of_little_noise_is_narrow(z, done, delta):
    """One round of T is one Gaussian sampled at 1/T."""
    low, high = bracket(balls_and_bins, z, 100, done, delta)
    assert low <= high <= gaussian_epsilon(z, delta)
    assert not is_wide(low, high)
    if done == 1:
        assert low <= sampled_gaussian_epsilon(z, 0.01, repr(delta)) <= high


@pytest.mark.parametrize("z", [0.06, 0.3, 1.0, 7.0])
@mpmath.workdps(DIGITS)
def test_log_normal_tail_and_moment_are_within_their_stated_error(z):
    """P(X > a) and E X 1{X > a} of log X ~ N(-1/(2 z^2), 1/z^2): normal tails at z log
    a +- 1/(2 z).
    """
    law = balls_and_bins._LogNormal(s=1.0 / z)
    least_mass = 10.0 ** -np.random.default_rng(0).uniform(0.01, 25, 200).min()
    positions = law.cut(least_mass) * np.geomspace(1e-6, 1.0, 300)
    exact_z = mpmath.mpf(z)
    for function, sign in ((law.tail, 1), (law.moment, -1)):
        values, stated = function(positions)
        exact_values = [
            exact_tail(exact_z * mpmath.log(position) + sign / (2 * exact_z))
            for position in positions.tolist()
        ]
        assert (relative_errors(values, exact_values) <= stated).all()
        assert stated.max() < 1e-11
