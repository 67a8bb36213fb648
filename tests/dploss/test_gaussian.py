"""One Gaussian, plain and sampled: epsilon, Renyi divergences, and tails of the loss.

Tails are compared with mpmath: they are within the error that is stated.
"""

import math
import textwrap

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import rdp
from scipy.special import ndtr

import dploss
from dploss.gaussian import gaussian_delta, gaussian_epsilon, upper_tail
from dploss.renyi import renyi
from dploss.round_loss import RoundLoss
from dpsum.accounting.claims import TF_PRIVACY_ORDERS
from tests.dploss.helpers import DIGITS, exact_tail, relative_errors


def test_example_of_the_package_prints_what_it_says(capsys):
    _, example = dploss.__doc__.split("one unit in a hundred:\n")
    code, after = example.split("prints `")
    exec(textwrap.dedent(code), {})
    assert capsys.readouterr().out.strip() == after.partition("`")[0]


def test_gaussian_epsilon_inverts_the_definition_of_delta():
    """P(L > eps) - e^eps Q(L > eps), L = (x - 1/2) / z^2."""
    for z, epsilon in ((0.5, 3.0), (1.0, 1.0), (4.0, 0.1)):
        cut = 0.5 + epsilon * z**2
        delta = ndtr(-(cut - 1) / z) - math.exp(epsilon) * ndtr(-cut / z)
        assert gaussian_delta(z, epsilon) == pytest.approx(delta, rel=1e-9)
        assert gaussian_epsilon(z, delta) == pytest.approx(epsilon, rel=1e-9)
    assert gaussian_epsilon(1.0, 0.5) == 0.0  # the total variation distance is 0.383


@pytest.mark.parametrize(("low", "high"), [(-8, 0), (0, 2), (2, 8), (8, 20), (20, 37)])
def test_upper_tail_is_within_its_stated_error(low, high):
    """Far out the error is above any margin that is fixed: 1e-13 at 20 to 37."""
    positions = np.random.default_rng(0).uniform(low, high, 400)
    tails, stated = upper_tail(positions)
    errors = relative_errors(tails, map(exact_tail, positions))
    assert (errors <= stated).all()
    assert stated.max() < 5e-13


def test_upper_tail_states_the_error_of_a_place_that_is_off():
    positions = np.linspace(-3, 30, 50)
    offset = 1e-7
    tails, stated = upper_tail(positions, offset)
    for moved in (positions - offset, positions + offset):
        assert (relative_errors(tails, map(exact_tail, moved)) <= stated).all()


def test_upper_tail_of_a_certain_event_has_no_error():
    tails, stated = upper_tail(np.array([-np.inf, np.inf]), 1.0)
    assert tails.tolist() == [1.0, 0.0]
    assert stated.max() < 1e-14


@pytest.mark.parametrize("z", [0.05, 1.0, 33.0])
@pytest.mark.parametrize("q", [0.0, 1e-4, 1 / 15, 0.9999, 1.0])
def test_renyi_divergences_have_the_bits_of_dp_accounting(z, q):
    accountant = rdp.RdpAccountant(TF_PRIVACY_ORDERS)
    gaussian = dp_accounting.GaussianDpEvent(z)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(q, gaussian))
    assert np.array_equal(renyi(z, q, TF_PRIVACY_ORDERS), accountant.rdp)


def position_of_ratio(z, chances, ratio):
    """Return x at which sum_n chances[n] e^((n x - n^2 / 2) / z^2) is a ratio."""

    def excess(x):
        terms = (mpmath.exp((n * x - n * n / 2) / z**2) for n in range(len(chances)))
        return mpmath.fdot(chances, terms) - ratio

    ends = (-400 * z**2 - 400, 400 * z**2 + 400)
    return mpmath.findroot(excess, ends, "bisect", tol=1e-62, maxsteps=300)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(
    ("z", "rate", "uses"),
    [(0.25, 0.3, 1), (1.0, 0.01, 1), (3.0, 1e-4, 1), (1.0, 0.025, 5), (0.5, 0.3, 2)],
)
@mpmath.workdps(DIGITS)
def test_round_loss_tails_are_within_their_stated_error(z, rate, uses, add):
    """P's and Q's mass beyond a loss, by bisection and the definition in 60 digits."""
    law = RoundLoss(z, rate, add, uses, 0.0)
    low, high = law.range(1e-20)
    offsets = np.geomspace(1e-12, 1e-3, 10)
    near_end = high - offsets if add else low + offsets
    losses = np.concatenate([np.linspace(low, high, 42)[1:-1], near_end])
    first, second, stated = law.tails(losses)
    assert np.isfinite(stated).all()
    assert np.median(stated) < 1e-11
    exact_z = mpmath.mpf(z)
    q = mpmath.mpf(rate)
    counts = range(uses + 1)
    chances = [mpmath.binomial(uses, n) * q**n * (1 - q) ** (uses - n) for n in counts]
    sign = -1 if add else 1
    for index, loss in enumerate(losses):
        ratio = mpmath.exp(mpmath.mpf(float(sign * loss)))
        if ratio <= chances[0]:
            continue
        position = position_of_ratio(exact_z, chances, ratio)
        tails = [exact_tail(sign * (position - n) / exact_z) for n in counts]
        present = mpmath.fdot(chances, tails)
        exact = (tails[0], present) if add else (present, tails[0])
        for value, expected in zip((first[index], second[index]), exact, strict=True):
            error = abs(mpmath.mpf(float(value)) - expected)
            assert expected <= 1e-290 or error <= stated[index] * expected, loss
