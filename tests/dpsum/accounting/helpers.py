"""Independent values and ledgers that the tests of accountants share."""

import math

import mpmath
import numpy as np
from scipy.linalg import toeplitz
from scipy.optimize import brentq

from dpsum.factorisations import square_root
from dpsum.secure import Lattice
from tests.dpsum.helpers import make_release

COHORTS = {"clients": 400, "cohort": 100, "rounds": 4, "rate": 0.25}


def sampled_gaussian_epsilon(z, q, delta):
    """Return epsilon of one round, q N(1, z^2) + (1 - q) N(0, z^2) against N(0, z^2).

    Solved with mpmath in 40 digits; `delta` may be text, of any size. With q = 1 it is
    the Gaussian mechanism of Balle and Wang (2018), Theorem 8.
    """
    with mpmath.workdps(40):
        q, z, delta = mpmath.mpf(q), mpmath.mpf(z), mpmath.mpf(delta)

        def delta_at(epsilon):
            cut = z**2 * mpmath.log((mpmath.exp(epsilon) - 1 + q) / q) + 0.5
            absent, present = (
                mpmath.erfc(position / (z * mpmath.sqrt(2))) / 2
                for position in (cut, cut - 1)
            )
            return (1 - q) * absent + q * present - mpmath.exp(epsilon) * absent

        low, high = mpmath.mpf(0), mpmath.mpf(5000)
        if delta_at(low) <= delta:
            return 0.0
        for _ in range(110):
            middle = (low + high) / 2
            if delta_at(middle) <= delta:
                high = middle
            else:
                low = middle
        return float(high)


def estimate_delta(losses, epsilon, deviations):
    """Return E (1 - e^(epsilon - L))+ over drawn losses, and so many standard errors."""
    gains = -np.expm1(np.minimum(epsilon - losses, 0.0))
    return gains.mean(), deviations * gains.std() / math.sqrt(len(gains))


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
    weights = square_root(4) if weights is None else weights
    values = {
        "z": 2.0,
        "mechanism": "correlated-gaussian",
        "sampler": {"kind": "one-pass", **COHORTS},
    }
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
    lattice = Lattice.finest(
        **mechanism,
        dimension=3000,
        deviations=4.0,
        clients=100,
        bits=bits,
        counted=counted,
    )
    sensitivity = lattice.granularity * lattice.bound(0.5)
    values = {
        "mechanism": "skellam",
        "observer": "server",
        "sensitivity": sensitivity,
        "noise_std": 2.0 * sensitivity,
        "dimension": 3000,
        "sampler": {"kind": "one-pass", **COHORTS},
        "secure": lattice.ledger_field(**mechanism),
    }
    return [make_release(z=2.0, round=index, **values | changes) for index in range(4)]
