"""Skellam noise as one Gaussian release: exact sums by scipy, and dp-accounting."""

import functools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from dploss.gaussian import gaussian_delta, gaussian_epsilon
from dpsum import DpsumError
from dpsum.accounting.analyses import skellam
from dpsum.accounting.calibration import calibrate
from dpsum.accounting.image_level import ImageUse
from dpsum.secure import Lattice
from tests.dpsum.accounting import helpers
from tests.dpsum.accounting.helpers import skellam_releases

Z = 2.0
C = 0.5
DELTA = 1e-6

profiles_of = functools.partial(helpers.profiles_of, delta=DELTA, claims={})


def law(variance):
    return stats.skellam(variance / 2, variance / 2)


def exact_delta(variance, shifts, epsilon):
    """Return sum (p(x - v) - e^eps p(x))+ over one or two dimensions, by scipy."""
    reach = int(14 * math.sqrt(variance)) + 10
    x = np.arange(-reach, reach + 1)
    shifted = plain = np.ones(1)
    for shift in shifts:
        shifted = np.multiply.outer(shifted, law(variance).pmf(x - shift))
        plain = np.multiply.outer(plain, law(variance).pmf(x))
    return float(np.clip(shifted - math.exp(epsilon) * plain, 0, None).sum())


def test_step_is_within_the_factor_of_the_analysis():
    """Skellam noise is worse than normal noise of its deviation."""
    for variance in (skellam.LEAST_VARIANCE, 1e3, 1e7):
        assert 1 < skellam.step(variance) * math.sqrt(variance) < skellam.FACTOR
    assert exact_delta(1.0, (1,), 0.0) > gaussian_delta(1.0, 0.0)


@pytest.mark.parametrize("shifts", [(1,), (-3,), (1, 1), (2, -1), (4, 3)])
@pytest.mark.parametrize("variance", [1.0, 4.0, 30.0])
def test_skellam_shift_is_within_the_gaussian(variance, shifts):
    """At epsilon 0 the bound of one shift by one is reached."""
    distance = skellam.step(variance) * math.hypot(*shifts)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
        bound = gaussian_delta(1 / distance, epsilon)
        exact = exact_delta(variance, shifts, epsilon)
        assert exact <= bound + 1e-12
        if shifts == (1,) and epsilon == 0:
            assert exact == pytest.approx(bound, rel=1e-7)


def test_skellam_of_sixteen_coordinates_agrees_with_dp_accounting():
    """A shift of sixteen ones at variance 16 composes to just below a Gaussian; its
    epsilon is rounded up to a grid.
    """
    x = np.arange(-120, 121)
    masses = [dict(enumerate(law(16.0).logpmf(x - shift))) for shift in (0, 1)]
    one_coordinate = privacy_loss_distribution.from_two_probability_mass_functions(
        *masses, value_discretization_interval=1e-4
    )
    exact = one_coordinate.self_compose(16).get_epsilon_for_delta(DELTA)
    bound = gaussian_epsilon(1 / (skellam.step(16.0) * 4), DELTA)
    assert 0.97 * bound < exact <= bound * (1 + 1e-3)


@pytest.mark.parametrize(("variance", "shift"), [(4.0, 1), (30.0, 5), (300.0, 17)])
def test_skellam_low_end_is_the_epsilon_of_one_coordinate(variance, shift):
    epsilon = skellam.lower_epsilon(variance, shift, 1e-5)
    assert exact_delta(variance, (shift,), epsilon) == pytest.approx(1e-5, rel=1e-5)
    assert epsilon <= gaussian_epsilon(1 / (skellam.step(variance) * shift), 1e-5)
    assert skellam.lower_epsilon(variance, 10**6, 1e-5) == 0.0


def test_skellam_account_is_one_gaussian_of_slightly_less_noise():
    """Calibration finds 2.90406 times the factor, rounded up."""
    profiles = profiles_of(skellam_releases())
    proven = profiles["proven"]
    replace_one = profiles["replace_one"]
    gaussian = gaussian_epsilon(Z, DELTA)
    assert (proven.observer, proven.status) == ("server", "proved")
    assert 0.998 * gaussian < proven.epsilon_low < gaussian
    assert proven.epsilon_high == gaussian_epsilon(Z / skellam.FACTOR, DELTA)
    assert replace_one.epsilon_high == gaussian_epsilon(Z / skellam.FACTOR / 2, DELTA)
    assert replace_one.epsilon_low < replace_one.epsilon_high
    sampler = skellam_releases()[0].sampler
    assert calibrate("proven", sampler, 1.5, DELTA, mechanism="skellam") == 2.907


def test_skellam_bracket_is_wider_for_fewer_bits_and_uncounted_shares():
    """Rounding may add to a norm, but need not; who stays adds uncounted noise."""
    lows = [
        profiles_of(skellam_releases(bits, counted))["proven"].epsilon_low
        for bits, counted in ((16, 100), (12, 100), (11, 100), (16, 50))
    ]
    assert lows[0] > lows[1] > lows[2] > 0
    assert lows[3] == pytest.approx(gaussian_epsilon(Z * math.sqrt(2), DELTA), rel=0.01)


def test_skellam_image_of_two_clients_in_one_round():
    use = ImageUse(images=np.array([[7], [7], [8]]), rounds=np.array([0, 0, 1]))
    entry = profiles_of(skellam_releases(), images=use)["image_level"]
    expected = gaussian_epsilon(Z / skellam.FACTOR / 2, DELTA)
    assert entry.epsilon_high == pytest.approx(expected, rel=1e-9)
    assert entry.epsilon_low < gaussian_epsilon(Z, DELTA)


SECURE = skellam_releases()[0].secure


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"secure": None}, "does not state its lattice"),
        ({"secure": {**SECURE, "more": 1}}, "does not state its lattice"),
        ({"secure": {**SECURE, "counted": 101}}, "counts 101 of 100 clients' noise"),
        (
            {"secure": {**SECURE, "coordinates": 2048}},
            "rounding 3000 coordinates makes",
        ),
        ({"secure": {**SECURE, "counted": 80}}, "but 80 shares come to"),
        ({"secure": {**SECURE, "share_variance": 1e4}}, "but 100 shares come to"),
        ({"sensitivity": C, "noise_std": Z * C}, "rounding 3000 coordinates makes"),
    ],
)
def test_skellam_account_refuses_whole_numbers_that_contradict(changes, message):
    with pytest.raises(DpsumError, match=message):
        profiles_of(skellam_releases(**changes))


def test_skellam_account_refuses_noise_below_its_analysis():
    lattice = Lattice(granularity=C, bits=16, coordinates=1, clients=100, counted=100)
    sensitivity = C * lattice.bound(C)
    releases = skellam_releases(
        dimension=1,
        sensitivity=sensitivity,
        noise_std=Z * sensitivity,
        secure=lattice.ledger_field(threshold=C, noise_multiplier=Z),
    )
    with pytest.raises(DpsumError, match=r"variance 11 units .* below the 256 of its"):
        profiles_of(releases)
