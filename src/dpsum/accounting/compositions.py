"""The privacy loss of many rounds, composed: ends of epsilon and of delta for any dominating pairs of single rounds.

A round's pair has two orders (with the unit against without it, and turned around), each with a law of its loss
(`RoundLaw`). The loss is put on a grid and rounds are convolved in `grid_sums`. Upper end: each loss is split between
its grid neighbours so that E_Q dP/dQ is kept in each cell (Doroshenko et al., Connect the Dots, 2022). Lower end: it is
rounded down on a finer grid. dp-accounting does the same composition; here it is fast enough for every round, and has a
lower end (the tests compare the two).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from dpsum.accounting.gaussian import Schedule
from dpsum.accounting.grid_sums import LOSS, SHARP, GridVariable, UpperTail, crossing, raised

LOWER_CELLS = 1 << 20
MANY_ROUNDS = 2000
SMALL = 1e-6
"""The delta for which a whole curve's grid is made."""

LEAST_NOISE = 0.2
"""Below this noise losses leave the range of floating point, and the ceiling of composed Gaussians is given."""

_CUT = 1e-4
"""Share of delta that may be spent on cutting the loss's tail."""


class RoundLaw(Protocol):
    """The privacy loss of one round in one order.

    `tails` gives the probability of a larger loss under the first and under the second distribution of the pair, and
    by how much of itself each may be off at most, float64 [n]. `range` gives losses below and above which the first has
    at most that mass on each side. `missing` is what the tails leave out, and an upper end adds.
    """

    @property
    def missing(self) -> float: ...
    def __hash__(self) -> int: ...
    def tails(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
    def range(self, mass: float) -> tuple[float, float]: ...


Rounds = Sequence[tuple[RoundLaw, int]]
"""Laws of rounds in one order, each with the number of such rounds; laws are the same object where they are equal."""


class _Grid:
    """The loss of one round on a grid: at one end, in one order, with what was cut off its top."""

    def __init__(self, law: RoundLaw, step: float, mass: float, *, upper: bool) -> None:
        low, high = law.range(mass)
        first = math.floor(low / step)
        losses = (first + np.arange(math.ceil(high / step) - first + 1)) * step
        *both, off = law.tails(losses)
        lean = 1 + off if upper else np.maximum(1 - off, 0.0)
        tail, other = (np.minimum(values * lean, 1.0) for values in both)
        inside = np.maximum(tail[:-1] - tail[1:], 0.0)
        weights = np.zeros(len(losses))
        self.infinite = 0.0
        if upper:
            ratio, moved = np.exp(losses), -1.0 / math.expm1(-step)
            # With n, m the cell's mass under the first and second law: right = (n - e^l m) / (1 - e^-step).
            right = (inside - ratio[:-1] * (other[:-1] - other[1:])) * moved
            # Each leaning term is off by at most twice its error; `other` may have left the range of numbers.
            slack = 4 * np.maximum(off[:-1], off[1:]) * (tail[:-1] + ratio[:-1] * other[:-1]) * moved
            slack += 1e-300 * ratio[:-1]
            right = np.clip(right + slack, 0.0, inside)
            weights[:-1] += inside - right
            weights[1:] += right
            weights[0] += max(1.0 - tail[0], 0.0)
            self.infinite = float(tail[-1]) + law.missing
        else:
            weights[:-1] = inside
        self.variable = GridVariable(first=first, weights=weights, step=step)


@lru_cache(maxsize=64)
def _grid(law: RoundLaw, step: float, mass: float, upper: bool) -> _Grid:
    return _Grid(law, step, mass, upper=upper)


class Composition:
    """One end of delta over epsilon, for all rounds in one order, sharp near one epsilon.

    Args:
        parts: losses on one grid, each with the number of rounds that have it.
        upper: which end.
        near: the epsilon.
        infinite: the chance that some loss is beyond the grid.
    """

    def __init__(
        self, parts: Sequence[tuple[GridVariable, int]], *, upper: bool, near: float, infinite: float = 0.0
    ) -> None:
        self._upper, self._infinite = upper, infinite
        self._tail = UpperTail(parts, around=near, kernel=LOSS)

    def delta(self, epsilon: float) -> float:
        """The end of delta at epsilon."""
        value, error = self._tail.value(epsilon)
        if self._upper:
            return value + error + self._infinite
        return 0.0 if math.isinf(value) else max(value - error, 0.0)

    def sharp(self, epsilon: float) -> bool:
        """Whether FFT errors are too small there to matter."""
        value, error = self._tail.value(epsilon)
        return error <= SHARP * value


def _composed(rounds: Rounds, step: float, mass: float, *, upper: bool, near: float) -> Composition:
    grids = [(_grid(law, step, mass, upper), count) for law, count in rounds]
    infinite = -math.expm1(sum(count * math.log1p(-grid.infinite) for grid, count in grids))
    return Composition([(grid.variable, count) for grid, count in grids], upper=upper, near=near, infinite=infinite)


def upper_end(
    orders: Sequence[Rounds], delta: float, *, step: float, mass: float, start: float, ceiling: float
) -> float:
    """An upper end of epsilon in every order, the first of which is the one that mostly costs the most.

    Args:
        orders: the rounds in each.
        delta: in (0, 1).
        step: of the grid.
        mass: what may be cut off a round's loss.
        start: a guess.
        ceiling: an upper end that is known already.
    """
    first, *others = orders
    epsilon = crossing(
        lambda near: _composed(first, step, mass, upper=True, near=near),
        delta=delta, start=start, ceiling=ceiling, upper=True,
    )  # fmt: skip
    return raised(
        epsilon,
        ceiling,
        lambda at: all(_composed(rounds, step, mass, upper=True, near=at).delta(at) <= delta for rounds in others),
    )


def lower_end(rounds: Rounds, delta: float, *, step: float, mass: float, upper: float) -> float:
    """A lower end of epsilon, which is at most `upper`; arguments as of `upper_end`."""
    return crossing(
        lambda near: _composed(rounds, step, mass, upper=False, near=near),
        delta=delta, start=upper, ceiling=upper, upper=False,
    )  # fmt: skip


def upper_curve(orders: Sequence[Rounds], epsilons: np.ndarray, *, step: float, mass: float) -> list[np.ndarray]:
    """Upper ends of delta in each order at each epsilon >= 0, float64 [n], sharp where they are not small."""
    curves = [_composed(rounds, step, mass, upper=True, near=0.0) for rounds in orders]
    return [np.array([curve.delta(float(epsilon)) for epsilon in epsilons]) for curve in curves]


def scale(schedule: Schedule) -> tuple[int, float, float]:
    """Rounds, the noise multiplier of all rounds as one Gaussian, and the least noise multiplier."""
    rounds = sum(count for _, count in schedule)
    joint = sum(count / z**2 for z, count in schedule) ** -0.5
    return rounds, joint, min(z for z, _ in schedule)


def cut_mass(rounds: int, delta: float) -> float:
    """What may be cut off a round's loss: in powers of two, so that many rounds and deltas share a grid."""
    return _CUT * 2.0 ** (math.floor(math.log2(delta)) - (rounds - 1).bit_length())


def spacing(schedule: Schedule, rate: float, uses: int = 1) -> float:
    """An upper end's grid: a small part of the typical loss of the quietest round, whose square its error falls with.

    Args:
        schedule: of sampled Gaussians.
        rate: a unit's chance of being in a round.
        uses: units that are zeroed together.
    """
    most = max(z for z, _ in schedule)
    typical = rate * (uses * math.expm1(min(most**-2, 50.0))) ** 0.5
    return float(np.clip(0.05 * typical, 1e-7, 1e-3 if uses == 1 else 4e-3))
