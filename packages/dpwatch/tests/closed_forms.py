"""Independent values of epsilon that several tests compare with."""

import mpmath
from scipy.optimize import brentq


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


def positive_root(excess):
    """Return the root of a falling function from 0 on; 0 where it starts below."""
    return float(brentq(excess, 0.0, 60.0, xtol=1e-12)) if excess(0.0) > 0 else 0.0
