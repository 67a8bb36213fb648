"""Independent values and ledgers that the tests of accountants share."""

import functools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.linalg import toeplitz
from scipy.optimize import brentq

from dploss.gaussian import gaussian_epsilon
from dpsum.accounting.account import account
from dpsum.accounting.context import AccountContext
from dpsum.factorisations import SquareRoot
from dpsum.secure import Lattice
from tests.dpsum.helpers import make_release, make_releases

COHORTS = {"clients": 400, "cohort": 100, "rounds": 4, "rate": 0.25}


def sampled_gaussian_epsilon(z, q, delta):
    """Return epsilon of one round, q N(1, z^2) + (1 - q) N(0, z^2) against N(0, z^2).

    Solved with mpmath in 40 digits; `delta` may be text, of any size. With q = 1 it is
    the Gaussian mechanism of Balle and Wang (2018), Theorem 8.
    """
    with mpmath.workdps(40):
        q = mpmath.mpf(q)
        z = mpmath.mpf(z)
        delta = mpmath.mpf(delta)

        def delta_at(epsilon):
            cut = z**2 * mpmath.log((mpmath.exp(epsilon) - 1 + q) / q) + 0.5
            absent, present = (
                mpmath.erfc(position / (z * mpmath.sqrt(2))) / 2
                for position in (cut, cut - 1)
            )
            return (1 - q) * absent + q * present - mpmath.exp(epsilon) * absent

        if delta_at(0) <= delta:
            return 0.0
        epsilon = mpmath.findroot(
            lambda epsilon: delta_at(epsilon) - delta,
            (0, 5000),
            solver="bisect",
            maxsteps=200,
        )
        return float(epsilon)


@functools.cache
def _law(z, rounds, rate, pessimistic):
    """Return dp-accounting's law of the rounds, which several tests compose."""
    return privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sampling_prob=rate,
        pessimistic_estimate=pessimistic,
        use_connect_dots=pessimistic,
        value_discretization_interval=1e-4,
    ).self_compose(rounds)


def dp_accounting_epsilon(stages, delta, pessimistic=True):
    """Return dp-accounting's epsilon of stages (z, rounds, rate), by a grid of 1e-4."""
    laws = [_law(*stage, pessimistic) for stage in stages]
    composed = functools.reduce(lambda law, next_law: law.compose(next_law), laws)
    return composed.get_epsilon_for_delta(delta)


def delta_interval(losses, epsilon):
    """Return E (1 - e^(epsilon - L))+ over drawn losses, -+ 5 standard errors."""
    gains = -np.expm1(np.minimum(epsilon - losses, 0.0))
    error = 5 * gains.std() / math.sqrt(len(gains))
    return gains.mean() - error, gains.mean() + error


def bracket(analysis, *arguments):
    """Return both ends of epsilon by an analysis."""
    return analysis.lower_epsilon(*arguments), analysis.upper_epsilon(*arguments)


def profiles_of(releases, delta, claims=None, **context):
    """Return the profiles of an account; `context` is fields of its context."""
    context_values = AccountContext(**context)
    return account(
        releases, delta=delta, claims=claims, context=context_values
    ).profiles


def ends(entry):
    """Return both ends of a profile's epsilon."""
    return entry.epsilon_low, entry.epsilon_high


def gaussian(z, delta, rel=1e-9):
    """Return epsilon of one Gaussian release, approximately."""
    return pytest.approx(gaussian_epsilon(z, delta), rel=rel)


def positive_root(excess):
    """Return the root of a falling function from 0 on; 0 where it starts below."""
    return float(brentq(excess, 0.0, 60.0, xtol=1e-12)) if excess(0.0) > 0 else 0.0


def banded_square_root(rounds, bands):
    """Return the square root of prefix sums, 1, 1/2, 3/8, ..., cut to so many bands."""
    lags = np.arange(rounds)
    column = [math.comb(2 * lag, lag) / 4**lag for lag in range(rounds)]
    return np.tril(toeplitz(np.where(lags < bands, column, 0.0)))


def correlated_releases(weights=None, rounds=4, **changes):
    """Return lines of correlated noise; `weights` is C^-1, the square root's if None."""
    weights = SquareRoot().weights(4, None) if weights is None else weights
    sampler = {"kind": "one-pass", **COHORTS}
    values = {"z": 2.0, "mechanism": "correlated-gaussian", "sampler": sampler}
    return [
        make_release(
            round=index,
            **{"combines": weights[index, : index + 1].tolist()} | values | changes,
        )
        for index in range(rounds)
    ]


def skellam_releases(bits=16, counted=100, **changes):
    """Return four lines of Skellam noise, z = 2, of cohorts of 100 clients."""
    mechanism = {"threshold": 0.5, "noise_multiplier": 2.0}
    sizes = {"dimension": 3000, "clients": 100, "bits": bits, "counted": counted}
    lattice = Lattice.finest(**mechanism, **sizes, deviations=4.0)
    sensitivity = lattice.granularity * lattice.bound(0.5)
    values = {
        "z": 2.0,
        "mechanism": "skellam",
        "observer": "server",
        "sensitivity": sensitivity,
        "noise_std": 2.0 * sensitivity,
        "dimension": 3000,
        "sampler": {"kind": "one-pass", **COHORTS},
        "secure": lattice.ledger_field(**mechanism),
    }
    return make_releases(4, **values | changes)
