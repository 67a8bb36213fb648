"""The Gaussian mechanism alone: exact (epsilon, delta), and several releases of one cohort as one."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import scipy
from scipy.special import log_ndtr, ndtri

from dpsum.errors import DpsumError


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """The smallest delta of one Gaussian release of sensitivity 1 and deviation z.

    Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy (2018), Theorem 8:
    delta = Phi(1/(2z) - eps z) - e^eps Phi(-1/(2z) - eps z).
    """
    z = noise_multiplier
    first = log_ndtr(0.5 / z - epsilon * z)
    second = epsilon + log_ndtr(-0.5 / z - epsilon * z)
    return math.exp(first) * -math.expm1(second - first)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The smallest epsilon >= 0 at which one Gaussian release is (epsilon, delta); exact to 1e-12."""
    z = noise_multiplier

    def excess(epsilon: float) -> float:
        return gaussian_delta(z, epsilon) - delta

    return 0.0 if delta >= 1 else least_root(excess, xtol=1e-13, rtol=1e-13, maxiter=300)


def least_root(excess: Callable[[float], float], **tolerance: Any) -> float:
    """Where a falling function of epsilon >= 0 comes to 0; 0 where it starts there. `tolerance`: of scipy's brentq."""
    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(scipy.optimize.brentq(excess, 0.0, high, **tolerance))


def rounded_up(noise_multiplier: float) -> float:
    """Up to four significant digits, so that a run's configuration can name it."""
    scale = 10.0 ** (math.floor(math.log10(noise_multiplier)) - 3)
    return float(f"{math.ceil(noise_multiplier / scale - 1e-9) * scale:.6g}")


def guess_epsilon(noise_multiplier: float, rate: float, rounds: int, delta: float) -> float:
    """Roughly the epsilon of a sampled Gaussian: by many small losses or by one large loss, whichever is more.

    Only a place to start a search from.
    """
    s = 1.0 / noise_multiplier
    normal = -float(ndtri(min(delta, 0.4))) * rate * (rounds * math.expm1(min(s * s, 60.0))) ** 0.5
    chance = min(3.0 * delta / (rounds * rate), 0.4)
    jump = rate * math.exp(min(s * s / 2 - s * float(ndtri(chance)), 600.0))
    return 0.95 * math.log1p(max(normal, jump))


def joint_multiplier(multipliers: Sequence[float]) -> float:
    """The multiplier of several Gaussian releases of one cohort, as one: (sum of z^-2)^-1/2."""
    return math.fsum(z**-2 for z in multipliers) ** -0.5


def rest_multiplier(total: float, other: float) -> float:
    """The multiplier beside one of `other` with which both releases of a cohort cost what one of `total` does.

    (z^-2 - other^-2)^-1/2 (Andrew et al. 2019, Theorem 1), in the last digits rounded up.

    Raises:
        DpsumError: the other release alone costs as much already.
    """
    if not other > total:
        raise DpsumError(
            f"a release of multiplier {other:g} beside the gradients' leaves nothing of noise.multiplier {total:g}: "
            "raise clipping.count_noise (it is half that multiplier) or lower the noise"
        )
    found = (total**-2 - other**-2) ** -0.5
    while joint_multiplier([found, other]) < total:
        found = math.nextafter(found, math.inf)
    return found
