"""Shuffled epochs with secret batches: a proven lower bound on epsilon.

The upper bound is dpsum's: with public batches, a unit is in one Gaussian release each
epoch.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy.special import log_ndtr

from dploss.gaussian import gaussian_epsilon
from dploss.grid_sums import LOSS, DeltaEnd, GridVariable, UpperTail, crossing
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses.known_rounds import ShuffledEpochsAccountant

_CELLS = 4096
# Bound on the error of a tail's logarithms, product and difference from the next tail,
# far above their true error.
_OFF = 1e-11
_PAIRS = ((2.0, 1.0), (1.0, 2.0), (1.0, 0.0), (0.0, 1.0))


def _largest(
    z: float, mean: float, chance: float, rounds: int, edges: np.ndarray
) -> np.ndarray:
    """Return the probability that an epoch's largest sum is above each edge."""
    rest = (rounds - 1) * log_ndtr(edges / z)
    present, none = (-np.expm1(log_ndtr((edges - at) / z) + rest) for at in (mean, 0.0))
    return np.asarray(chance * present + (1 - chance) * none)


def _losses(
    z: float, pair: tuple[float, float], chance: float, rounds: int, step: float
) -> GridVariable | None:
    """Return the loss of one epoch, rounded down to the grid.

    None where no probability is left after the rounding.
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
    """Return a proven lower bound on epsilon after `done` rounds of secret batches.

    It holds under zero-out, and so under replace-one. Each epoch shuffles the units
    anew and cuts the list into batches of a public size; `rate` is the probability of
    being in a given full one of the `epoch` rounds. In units of the threshold, let the
    unit contribute 1 and all others -1. Subtract from an epoch's t released sums the
    sum of a batch without the unit. The results are independent N(0, z^2), except for
    the unit's batch, if it is among them (with probability p): its mean is 2 where the
    unit contributes and 1 where it is zeroed. Where all others contribute 0, the means
    are 1 and 0. The largest sum is at most m with probability

        F(m) = p Phi((m - mean) / z) Phi(m / z)^(t - 1) + (1 - p) Phi(m / z)^t,

    in one epoch (Chua et al., How Private are DP-SGD Implementations?, 2024, for the
    first pair). The grid interval of each epoch's largest sum is a function of the
    releases, so that the composition of these laws over epochs is a lower bound. The
    bound is tight for small noise and loose for large noise. z is the greatest of all
    rounds.
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
    """Accountant of shuffled epochs that also bounds secret batches from below."""

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
