"""Brackets at the ends: little noise, many rounds, tiny delta. Reference values are by
mpmath for one round, and by dp-accounting's distribution of the privacy loss.
"""

import itertools

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from dpsum.accounting import fine_brackets
from dpsum.accounting.analyses import balls_and_bins, fixed_size, poisson
from dpsum.accounting.calibration import calibrate, epsilon_after
from dpsum.accounting.fine_brackets import is_wide
from dpsum.accounting.gaussian import gaussian_epsilon


def one_round(z: float, q: float, delta: str) -> float:
    """Epsilon of one sampled Gaussian by removal; tails have relative precision."""
    with mpmath.workdps(40):
        q, z, delta = mpmath.mpf(q), mpmath.mpf(z), mpmath.mpf(delta)

        def missed(epsilon: mpmath.mpf) -> mpmath.mpf:
            x = z**2 * mpmath.log((mpmath.exp(epsilon) - 1 + q) / q) + 0.5
            absent, present = (
                mpmath.erfc(at / (z * mpmath.sqrt(2))) / 2 for at in (x, x - 1)
            )
            return (1 - q) * absent + q * present - mpmath.exp(epsilon) * absent

        low, high = mpmath.mpf(0), mpmath.mpf(5000)
        if missed(low) <= delta:
            return 0.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if missed(middle) <= delta else (middle, high)
        return float(high)


ROUNDS = [
    (1.0, 0.5, 1e-300),
    (1.0, 0.5, 1e-60),
    (0.05, 0.1, 1e-5),
    (0.1, 1e-6, 1e-10),
    (0.05, 1e-6, 1e-5),
    (1000.0, 0.3, 1e-5),
]


@pytest.mark.parametrize(("z", "q", "delta"), ROUNDS)
def test_one_round_is_between_close_ends(z, q, delta):
    exact = one_round(z, q, repr(delta))
    low, high = (
        end(((z, 1),), q, delta)
        for end in (poisson.lower_epsilon, poisson.upper_epsilon)
    )
    assert low <= exact <= high and not is_wide(low, high)


@pytest.mark.parametrize("delta", ["1e-301", "1e-305"])
def test_a_low_end_is_never_above_the_truth_where_delta_is_tiny(delta):
    """The first value of the public report: 36.799 at 1e-301, where 37.511 was said."""
    exact = one_round(1.0, 0.5, delta)
    low, high = (
        end(((1.0, 1),), 0.5, float(delta))
        for end in (poisson.lower_epsilon, poisson.upper_epsilon)
    )
    assert 0.95 * exact < low <= exact <= high <= 1.05 * exact


COMPOSED = [(0.1, 0.05, 60, 1e-5), (0.15, 0.3, 20, 1e-5), (4.0, 1 / 3000, 10_000, 1e-5)]


@pytest.mark.parametrize(("z", "q", "rounds", "delta"), COMPOSED)
def test_composed_rounds_agree_with_dp_accounting(z, q, rounds, delta):
    """Its distribution is a pessimistic one: never below the exact value."""
    step = 0.05 if z < 1 else 1e-5
    theirs = (
        privacy_loss_distribution.from_gaussian_mechanism(
            z, sampling_prob=q, value_discretization_interval=step
        )
        .self_compose(rounds)
        .get_epsilon_for_delta(delta)
    )
    schedule = ((z, rounds),)
    low, high = (
        end(schedule, q, delta)
        for end in (poisson.lower_epsilon, poisson.upper_epsilon)
    )
    assert low <= theirs and not is_wide(low, high)
    assert high == pytest.approx(theirs, rel=0.01)


FAR = [
    (1.0, 0.01, 10_000, 1e-60),
    (1.0, 0.01, 10_000, 1e-25),
    (0.05, 1e-6, 10**6, 1e-5),
    (0.05, 0.5, 10**6, 1e-5),
    (0.2, 1e-4, 10**6, 1e-10),
]


@pytest.mark.parametrize(("z", "q", "rounds", "delta"), FAR)
def test_far_brackets_are_narrow(z, q, rounds, delta):
    schedule = ((z, rounds),)
    low, high = (
        end(schedule, q, delta)
        for end in (poisson.lower_epsilon, poisson.upper_epsilon)
    )
    assert 0.0 <= low <= high <= gaussian_epsilon(z * rounds**-0.5, delta)
    assert not is_wide(low, high)


def test_the_high_end_is_the_least_that_was_found():
    """The expected epsilon is far off where one participation in a million rounds
    decides, so that finer grids are tried. Their high ends were thrown away: 0.00623
    and 0.159.
    """
    low, high = poisson.ends(((1.0, 10**6),), 1e-6, 1e-6)
    assert 0.0 < low <= high < 0.0037 and not is_wide(low, high)
    low, high = poisson.ends(((0.5, 10**6),), 1e-6, 1e-5)
    assert 0.025 < low <= high < 0.028
    for z, q, rounds in ((1.0, 0.01, 100), (0.5, 0.05, 40)):
        schedule = ((z, rounds),)
        assert poisson.ends(schedule, q, 1e-6) == (
            poisson.lower_epsilon(schedule, q, 1e-6),
            poisson.upper_epsilon(schedule, q, 1e-6),
        )


def test_the_fine_bracket_agrees_with_the_usual_one(monkeypatch):
    """Both ends of both grids are proved, so each low end is below each high end."""
    for z, q, rounds in ((1.0, 0.004, 250), (0.5, 0.05, 40), (3.0, 0.2, 100)):
        schedule = ((z, rounds),)
        usual = (
            poisson.lower_epsilon(schedule, q, 1e-6),
            poisson.upper_epsilon(schedule, q, 1e-6),
        )
        stage = poisson.stage_of(schedule, q)
        fine = fine_brackets.refined((stage,), 1e-6, 0.0, 1e4)
        assert max(usual[0], fine[0]) <= min(usual[1], fine[1])
        assert not is_wide(*fine)


def test_several_noises_are_composed():
    """Two stages of one noise are that noise's rounds."""
    stages = (((0.1, 20),), 0.05), (((0.1, 40),), 0.05)
    low, high = poisson.composed_ends(stages, 1e-5)
    alone = poisson.upper_epsilon(((0.1, 60),), 0.05, 1e-5)
    assert low <= alone and not is_wide(low, high)
    assert high == pytest.approx(alone, rel=0.01)


def test_calibration_has_no_jump_where_noise_is_little():
    """Epsilon at z = 0.1999 and 0.2001 was 192 and 82 for these rounds."""
    sampler = {"kind": "poisson", "clients": 1000, "cohort": 10, "rounds": 60}
    sampler["rate"] = 0.01
    ends = [epsilon_after("holds", sampler, z, 60, 1e-5) for z in (0.1999, 0.2001)]
    assert ends[0] == pytest.approx(ends[1], rel=0.01)
    z = calibrate("holds", sampler, 1.2 * ends[0], 1e-5)
    assert z < 0.1999
    assert epsilon_after("holds", sampler, z, 60, 1e-5) == pytest.approx(
        1.2 * ends[0], rel=0.01
    )


BINS = [
    *itertools.product((0.04, 0.05, 0.1, 0.2), (1, 50, 100), (1e-5, 1e-10)),
    (0.05, 100, 1e-100),
]


@pytest.mark.parametrize(("z", "done", "delta"), BINS)
def test_balls_and_bins_of_little_noise_is_narrow(z, done, delta):
    """After one round of T it is one Gaussian sampled at 1/T, by mpmath."""
    low, high = (
        end(z, 100, done, delta)
        for end in (balls_and_bins.lower_epsilon, balls_and_bins.upper_epsilon)
    )
    assert low <= high <= gaussian_epsilon(z, delta) and not is_wide(low, high)
    if done == 1:
        assert low <= one_round(z, 0.01, repr(delta)) <= high


def test_balls_and_bins_of_little_noise_by_simulation():
    """delta(P || Q) at both ends, drawn from P: 200,000 draws, T = 4, z = 0.2.

    At delta = 0.05 the mean of the draws has a deviation below 5e-4; six of them are a
    false alarm in 1e-8.
    """
    rounds, z, delta, draws = 4, 0.2, 0.05, 200_000
    low, high = (
        end(z, rounds, rounds, delta)
        for end in (balls_and_bins.lower_epsilon, balls_and_bins.upper_epsilon)
    )
    generator = np.random.default_rng(7)
    s = 1 / z
    losses = s * generator.standard_normal((draws, rounds)) - s * s / 2
    losses[:, 0] += s * s
    log_f = np.logaddexp.reduce(losses, axis=1) - np.log(rounds)
    missed = [np.maximum(-np.expm1(end - log_f), 0.0) for end in (low, high)]
    means = [values.mean() for values in missed]
    spread = 6 * max(values.std() for values in missed) / draws**0.5
    assert means[0] >= delta - spread and means[1] <= delta + spread
    assert high - low < 0.1


def test_fixed_size_of_little_noise_has_both_ends():
    for z in (0.1, 0.19):
        low, high = (
            end(((z, 60),), 0.05, 1e-5)
            for end in (fixed_size.lower_epsilon, fixed_size.upper_epsilon)
        )
        # One data set is not the worst pair, so that there is a gap.
        assert 0.8 * high < low < high < 0.5 * gaussian_epsilon(z / 60**0.5, 1e-5)
        low, high = (
            end(((z, 60),), 0.05, 1e-5, "replace-one")
            for end in (fixed_size.lower_epsilon, fixed_size.upper_epsilon)
        )
        assert low < high and not is_wide(low, high)
