"""Shuffled epochs whose batches are secret: a proved low end of epsilon.

The high end is dpsum's: the batches told, a unit is in one Gaussian release an epoch.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy.special import log_ndtr

from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses.known_rounds import ShuffledEpochsAccountant
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.grid_sums import LOSS, DeltaEnd, GridVariable, UpperTail, crossing

_CELLS = 4096
# Of a tail: what its logarithms, its product and its difference from the next can be
# off by, far more than they are.
_OFF = 1e-11
_PAIRS = ((2.0, 1.0), (1.0, 2.0), (1.0, 0.0), (0.0, 1.0))


def _largest(
    z: float, mean: float, chance: float, rounds: int, edges: np.ndarray
) -> np.ndarray:
    """The probability that the largest of an epoch's sums is above each edge."""
    rest = (rounds - 1) * log_ndtr(edges / z)
    present, none = (-np.expm1(log_ndtr((edges - at) / z) + rest) for at in (mean, 0.0))
    return np.asarray(chance * present + (1 - chance) * none)


def _losses(
    z: float, pair: tuple[float, float], chance: float, rounds: int, step: float
) -> GridVariable | None:
    """The loss of one epoch, rounded down to the grid; None where nothing is left of
    it.
    """
    edges = np.linspace(-6.0 * z, 2.0 + 12.0 * z, _CELLS)
    tails = [
        np.concatenate([[1.0], _largest(z, mean, chance, rounds, edges), [0.0]])
        for mean in pair
    ]
    (first, off), (second, second_off) = (
        (tail[:-1] - tail[1:], _OFF * (tail[:-1] + tail[1:])) for tail in tails
    )
    first = first - off
    second = second + second_off
    positive = first > 0
    if not positive.any():
        return None
    cells = np.floor(np.log(first[positive] / second[positive]) / step - 1e-6).astype(
        int
    )
    return GridVariable(
        first=int(cells.min()),
        weights=np.bincount(cells - cells.min(), first[positive]),
        step=step,
    )


@functools.lru_cache(maxsize=256)
def secret_batches(
    noise_multiplier: float, rate: float, epoch: int, done: int, delta: float
) -> float:
    """A proved lower end of epsilon after `done` rounds of secret batches, under
    zero-out (and so under replace-one).

    Each epoch shuffles the units anew and cuts the list into batches of a size that is
    known; `rate` is the chance of being in a given full one of the `epoch` rounds. In
    units of the threshold, let the unit contribute 1 and all others -1. Then an epoch's
    t released sums, less what batches without the unit have, are independent N(0, z^2)
    but for that of the unit's batch, if it is among them (with chance p): it has the
    mean 2 where the unit contributes and 1 where it is zeroed. Where all others
    contribute 0, it is 1 and 0. The largest sum is at most m with chance

        F(m) = p Phi((m - mean) / z) Phi(m / z)^(t - 1) + (1 - p) Phi(m / z)^t,

    in one epoch (Chua et al., How Private are DP-SGD Implementations?, 2024, for the
    first pair). Which interval of a grid the largest sum of each epoch lies in follows
    from the releases, so the composition of these laws over epochs is a low end. It is
    close to the truth where noise is small, and far from it where it is large. z is the
    greatest of all rounds.
    """
    whole, rest = divmod(done, epoch)
    epochs = [
        (rounds, count)
        for rounds, count in ((epoch, whole), (rest, 1))
        if rounds and count
    ]
    ceiling = (
        gaussian_epsilon(noise_multiplier * (whole + bool(rest)) ** -0.5, delta)
        if epochs
        else 0.0
    )
    if ceiling == 0.0:
        return 0.0
    step = max(1e-3 * ceiling, 1e-6) / (whole + 1)
    proved = 0.0
    for pair in _PAIRS:
        laws = [
            (_losses(noise_multiplier, pair, min(rounds * rate, 1.0), rounds, step), n)
            for rounds, n in epochs
        ]
        losses = [(law, count) for law, count in laws if law is not None]
        if losses:
            low = crossing(
                lambda near, losses=losses: DeltaEnd(
                    UpperTail(losses, around=near, kernel=LOSS), upper=False
                ),  # type: ignore[misc]
                delta=delta,
                start=max(proved, 0.3 * ceiling),
                ceiling=ceiling,
                upper=False,
            )
            proved = max(proved, low)
    return proved


class SecretBatchesAccountant(ShuffledEpochsAccountant):
    """Also brackets secret batches from below."""

    def low_of_secret_batches(self, events: Events, delta: float) -> float:
        _, most, done = events.ends
        epoch = int(events.sampling["epoch"])
        return secret_batches(most, events.rate, epoch, done, delta)

    def explain(self, events: Events) -> str:
        text = super().explain(events)
        if events.sampling["batches"] == "known":
            return text
        return (
            f"{text}; the low end is of the largest of an epoch's sums where all others"
            " contribute alike (Chua et al. 2024)"
        )
