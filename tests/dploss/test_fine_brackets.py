"""Brackets at the ends: little noise, many rounds, tiny delta.

Expected values are from mpmath for one round, and from dp-accounting's distribution of
the privacy loss.
"""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from dploss import fine_brackets
from dploss.fine_brackets import is_wide
from dploss.gaussian import gaussian_epsilon
from dpsum.accounting.analyses import balls_and_bins, fixed_size, poisson
from dpsum.accounting.calibration import calibrate, epsilon_after
from tests.dpsum.accounting.helpers import estimate_delta, sampled_gaussian_epsilon


def bracket(analysis, *arguments):
    return analysis.lower_epsilon(*arguments), analysis.upper_epsilon(*arguments)


@pytest.mark.parametrize(
    ("z", "q", "delta"),
    [
        (1.0, 0.5, 1e-300),
        (1.0, 0.5, 1e-60),
        (0.05, 0.1, 1e-5),
        (0.1, 1e-6, 1e-10),
        (1000.0, 0.3, 1e-5),
    ],
)
def test_poisson_bracket_of_one_round_is_narrow_around_the_exact_value(z, q, delta):
    low, high = bracket(poisson, ((z, 1),), q, delta)
    assert low <= sampled_gaussian_epsilon(z, q, repr(delta)) <= high
    assert not is_wide(low, high)


@pytest.mark.parametrize("delta", ["1e-301", "1e-305"])
def test_poisson_low_end_is_not_above_the_truth_for_a_tiny_delta(delta):
    exact = sampled_gaussian_epsilon(1.0, 0.5, delta)
    low, high = bracket(poisson, ((1.0, 1),), 0.5, float(delta))
    assert 0.95 * exact < low <= exact <= high <= 1.05 * exact


@pytest.mark.parametrize(
    ("z", "q", "rounds", "grid_step"),
    [(0.1, 0.05, 60, 0.05), (0.15, 0.3, 20, 0.05), (4.0, 1 / 3000, 10_000, 1e-5)],
)
def test_poisson_bracket_agrees_with_dp_accounting(z, q, rounds, grid_step):
    """Its distribution is pessimistic: never below the exact value."""
    one_round = privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=grid_step
    )
    expected = one_round.self_compose(rounds).get_epsilon_for_delta(1e-5)
    low, high = bracket(poisson, ((z, rounds),), q, 1e-5)
    assert low <= expected
    assert not is_wide(low, high)
    assert high == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("z", "q", "rounds", "delta"),
    [
        (1.0, 0.01, 10_000, 1e-60),
        (0.05, 1e-6, 10**6, 1e-5),
        (0.05, 0.5, 10**6, 1e-5),
        (0.2, 1e-4, 10**6, 1e-10),
    ],
)
def test_poisson_bracket_of_many_rounds_is_narrow(z, q, rounds, delta):
    low, high = bracket(poisson, ((z, rounds),), q, delta)
    assert 0.0 <= low <= high <= gaussian_epsilon(z * rounds**-0.5, delta)
    assert not is_wide(low, high)


def test_poisson_ends_take_the_least_high_end():
    """Finer grids are tried where one participation in a million rounds decides."""
    low, high = poisson.ends(((1.0, 10**6),), 1e-6, 1e-6)
    assert 0.0 < low <= high < 0.0037
    assert not is_wide(low, high)
    low, high = poisson.ends(((0.5, 10**6),), 1e-6, 1e-5)
    assert 0.025 < low <= high < 0.028
    schedule = ((0.5, 40),)
    ends = bracket(poisson, schedule, 0.05, 1e-6)
    assert poisson.ends(schedule, 0.05, 1e-6) == ends


@pytest.mark.parametrize(
    ("z", "q", "rounds"), [(1.0, 0.004, 250), (0.5, 0.05, 40), (3.0, 0.2, 100)]
)
def test_fine_bracket_overlaps_the_usual_one(z, q, rounds):
    low, high = bracket(poisson, ((z, rounds),), q, 1e-6)
    stage = poisson.stage_of(((z, rounds),), q)
    fine_low, fine_high = fine_brackets.refined((stage,), 1e-6, 0.0, 1e4)
    assert max(low, fine_low) <= min(high, fine_high)
    assert not is_wide(fine_low, fine_high)


def test_composed_ends_of_one_noise_in_two_stages_are_one_schedule():
    stages = (((0.1, 20),), 0.05), (((0.1, 40),), 0.05)
    low, high = poisson.composed_ends(stages, 1e-5)
    expected = poisson.upper_epsilon(((0.1, 60),), 0.05, 1e-5)
    assert low <= expected
    assert not is_wide(low, high)
    assert high == pytest.approx(expected, rel=0.01)


def test_calibration_has_no_jump_where_noise_is_little():
    sampler = {"kind": "poisson", "clients": 1000, "cohort": 10, "rounds": 60}
    sampler["rate"] = 0.01

    def epsilon_of(z):
        return epsilon_after("proven", sampler, z, 60, 1e-5)

    assert epsilon_of(0.1999) == pytest.approx(epsilon_of(0.2001), rel=0.01)
    target = 1.2 * epsilon_of(0.1999)
    z = calibrate("proven", sampler, target, 1e-5)
    assert z < 0.1999
    assert epsilon_of(z) == pytest.approx(target, rel=0.01)


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


def test_balls_and_bins_bracket_of_little_noise_by_simulation():
    """200,000 draws from P, T = 4, z = 0.2; six standard errors, false alarm 1e-8."""
    rounds, z, delta = 4, 0.2, 0.05
    low, high = bracket(balls_and_bins, z, rounds, rounds, delta)
    draws = np.random.default_rng(7).standard_normal((200_000, rounds))
    log_ratios = draws / z - 1 / (2 * z**2)
    log_ratios[:, 0] += 1 / z**2
    losses = np.logaddexp.reduce(log_ratios, axis=1) - np.log(rounds)
    mean, error = estimate_delta(losses, low, 6)
    assert mean >= delta - error
    mean, error = estimate_delta(losses, high, 6)
    assert mean <= delta + error
    assert high - low < 0.1


@pytest.mark.parametrize("z", [0.1, 0.19])
def test_fixed_size_bracket_of_little_noise_has_both_ends(z):
    """One data set is not the worst pair, so that zero-out has a gap."""
    low, high = bracket(fixed_size, ((z, 60),), 0.05, 1e-5)
    assert 0.8 * high < low < high < 0.5 * gaussian_epsilon(z / 60**0.5, 1e-5)
    low, high = bracket(fixed_size, ((z, 60),), 0.05, 1e-5, "replace-one")
    assert low < high
    assert not is_wide(low, high)
