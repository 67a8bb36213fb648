"""A lower bound for one pass over shuffled batches of fixed size, where the observer does not know who is in which.

The blocks of one-pass training are a shuffle, and whether a secret shuffle protects more than known blocks do has
no upper bound of use. What can be said is how little it protects (Chua et al., How Private are DP-SGD
Implementations?, 2024): against zero-out,

    P = (1/T) sum_t N(2 e_t, z^2 I),    Q = (1/T) sum_t N(e_t, z^2 I)

(all other clients contribute -C in a direction, so that the batch of the absent client stands out) are a pair that
the mechanism produces, and the event max_t x_t > c tells them apart.
"""

import numpy as np
import scipy
from scipy.special import log_ndtr


def shuffled_lower_delta(noise_multiplier: float, rounds: int, epsilon: float) -> float:
    """The largest P(max > c) - e^eps Q(max > c) over a grid of c: delta(epsilon) is at least this."""
    z = noise_multiplier
    cuts = np.linspace(-4 * z, 2 + 12 * z, 20_001)
    rest = (rounds - 1) * log_ndtr(cuts / z)
    above_p = -np.expm1(log_ndtr((cuts - 2) / z) + rest)
    above_q = -np.expm1(log_ndtr((cuts - 1) / z) + rest)
    return float(np.max(above_p - np.exp(epsilon) * above_q))


def shuffled_lower_epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """A lower bound of epsilon of one pass over T secret batches of fixed size; no upper bound is implied.

    Args:
        noise_multiplier: z > 0.
        rounds: T >= 1.
        delta: in (0, 1).
    """
    if shuffled_lower_delta(noise_multiplier, rounds, 0.0) <= delta:
        return 0.0
    high = 1.0
    while shuffled_lower_delta(noise_multiplier, rounds, high) > delta:
        high *= 2

    def excess(epsilon: float) -> float:
        return shuffled_lower_delta(noise_multiplier, rounds, epsilon) - delta

    return max(float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-9)) - 1e-8, 0.0)
