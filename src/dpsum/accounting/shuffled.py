"""How little secret batches of a shuffled list can hide: a low end of epsilon over several epochs.

Each epoch shuffles the units anew and cuts the list into batches of a size that is known. In units of the threshold,
let the unit contribute 1 and all others -1. Then an epoch's t released sums, less what batches without the unit have,
are independent N(0, z^2) but for that of the unit's batch, if it is among them (with chance p): it has the mean 2 where
the unit contributes and 1 where it is zeroed. Where all others contribute 0, it is 1 and 0. The largest sum is at most
m with chance

    F(m) = p Phi((m - mean) / z) Phi(m / z)^(t - 1) + (1 - p) Phi(m / z)^t,

in one epoch (Chua et al., How Private are DP-SGD Implementations?, 2024, for the first pair). Which interval of a grid
the largest sum of each epoch lies in follows from the releases, so the composition of these laws over epochs is a low
end. It is close to the truth where noise is small, and far from it where it is large.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import log_ndtr

from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.grid_sums import LOSS, SHARP, GridVariable, UpperTail, crossing

_CELLS = 4096
# Of a tail: what its logarithms, its product and its difference from the next can be off by, far more than they are.
_OFF = 1e-11
_PAIRS = ((2.0, 1.0), (1.0, 2.0), (1.0, 0.0), (0.0, 1.0))


def _largest(z: float, mean: float, chance: float, rounds: int, edges: np.ndarray) -> np.ndarray:
    """The probability that the largest of an epoch's sums is above each edge."""
    rest = (rounds - 1) * log_ndtr(edges / z)
    own, none = (-np.expm1(log_ndtr((edges - at) / z) + rest) for at in (mean, 0.0))
    return np.asarray(chance * own + (1 - chance) * none)


def _losses(z: float, pair: tuple[float, float], chance: float, rounds: int, step: float) -> GridVariable | None:
    """The loss of one epoch, rounded down to the grid; None where nothing is left of it."""
    edges = np.linspace(-6.0 * z, 2.0 + 12.0 * z, _CELLS)
    tails = [np.concatenate([[1.0], _largest(z, mean, chance, rounds, edges), [0.0]]) for mean in pair]
    (first, off), (second, other) = ((tail[:-1] - tail[1:], _OFF * (tail[:-1] + tail[1:])) for tail in tails)
    first, second = first - off, second + other
    kept = first > 0
    if not kept.any():
        return None
    places = np.floor(np.log(first[kept] / second[kept]) / step - 1e-6).astype(int)
    return GridVariable(first=int(places.min()), weights=np.bincount(places - places.min(), first[kept]), step=step)


class _Epochs:
    """A low end of delta over eps, sharp near one eps."""

    def __init__(self, parts: list[tuple[GridVariable, int]], near: float) -> None:
        self._tail = UpperTail(parts, around=near, kernel=LOSS)

    def delta(self, epsilon: float) -> float:
        value, error = self._tail.value(epsilon)
        return 0.0 if math.isinf(value) else max(value - error, 0.0)

    def sharp(self, epsilon: float) -> bool:
        value, error = self._tail.value(epsilon)
        return error <= SHARP * value


@functools.lru_cache(maxsize=256)
def lower_epsilon(noise_multiplier: float, rate: float, epoch: int, done: int, delta: float) -> float:
    """A proved lower end of epsilon after `done` rounds with secret batches, under zero-out (and so under replace-one).

    Args:
        noise_multiplier: z > 0, the greatest of all rounds.
        rate: the chance of being in a given full batch.
        epoch: rounds of a whole epoch.
        done: rounds so far.
        delta: in (0, 1).
    """
    whole, rest = divmod(done, epoch)
    epochs = [(rounds, count) for rounds, count in ((epoch, whole), (rest, 1)) if rounds and count]
    ceiling = gaussian_epsilon(noise_multiplier * (whole + bool(rest)) ** -0.5, delta) if epochs else 0.0
    if ceiling == 0.0:
        return 0.0
    step, found = max(1e-3 * ceiling, 1e-6) / (whole + 1), 0.0
    for pair in _PAIRS:
        laws = [(_losses(noise_multiplier, pair, min(rounds * rate, 1.0), rounds, step), n) for rounds, n in epochs]
        parts = [(law, count) for law, count in laws if law is not None]
        if parts:
            low = crossing(
                functools.partial(_Epochs, parts),
                delta=delta, start=max(found, 0.3 * ceiling), ceiling=ceiling, upper=False,
            )  # fmt: skip
            found = max(found, low)
    return found
