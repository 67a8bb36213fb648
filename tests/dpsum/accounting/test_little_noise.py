"""Accounts at little noise: balls-and-bins, fixed sizes, and calibration there."""

import mpmath
import numpy as np
import pytest

from dploss.fine_brackets import is_wide
from dploss.gaussian import gaussian_epsilon
from dpsum.accounting.analyses import balls_and_bins, fixed_size
from dpsum.accounting.calibration import calibrate, epsilon_after
from tests.dploss.helpers import DIGITS, exact_tail, relative_errors
from tests.dpsum.accounting.helpers import sampled_gaussian_epsilon


def bracket(analysis, *arguments):
    return analysis.lower_epsilon(*arguments), analysis.upper_epsilon(*arguments)


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
    for (values, stated), sign in (
        (law.tail(positions), 1),
        (law.moment(positions), -1),
    ):
        exact_values = [
            exact_tail(exact_z * mpmath.log(position) + sign / (2 * exact_z))
            for position in map(mpmath.mpf, positions.tolist())
        ]
        assert (relative_errors(values, exact_values) <= stated).all()
        assert stated.max() < 1e-11


@pytest.mark.parametrize("z", [0.1, 0.19])
def test_fixed_size_bracket_of_little_noise_has_both_ends(z):
    """One data set is not the worst pair, so that zero-out has a gap."""
    low, high = bracket(fixed_size, ((z, 60),), 0.05, 1e-5)
    assert 0.8 * high < low < high < 0.5 * gaussian_epsilon(z / 60**0.5, 1e-5)
    low, high = bracket(fixed_size, ((z, 60),), 0.05, 1e-5, "replace-one")
    assert low < high
    assert not is_wide(low, high)
