"""Composition of many rounds: ends of epsilon and delta for any dominating pairs.

A round's pair has two orders (with the unit against without it, and turned around),
each with a law of its loss (`RoundLaw`). The loss is put on a grid and rounds are
convolved in `grid_sums`. Upper end: each loss is split between its grid neighbours so
that E_Q dP/dQ is kept in each cell (Doroshenko et al., Connect the Dots, 2022). Lower
end: it is rounded down on a finer grid. dp-accounting does the same composition; here
it is fast enough for every round, and has a lower end (the tests compare the two).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from dploss.gaussian import (
    Schedule,
    gaussian_epsilon,
    guess_epsilon,
    joint_of,
)
from dploss.grid_sums import (
    LOSS,
    DeltaEnd,
    GridVariable,
    UpperTail,
    crossing,
    raised,
)

LOWER_CELLS = 1 << 20
MANY_ROUNDS = 2000
SMALL = 1e-6
"""Delta for which the grid of a whole curve is made."""

LEAST_NOISE = 0.2
"""Noise multiplier below which losses leave the range of floating point. The end is
then the ceiling of composed Gaussians.
"""

LEAST_GRID_DELTA = 1e-300
"""The smallest delta that a grid is made for: masses stay numbers of full precision."""

LEAST_USUAL_DELTA = 1e-20
"""Delta below which the rounding of the Fourier transform requires special grids
(`fine_brackets`).
"""

_CUT = 1e-4
"""Share of delta that may be spent on cutting the loss's tail."""


LARGEST = 600.0
"""Losses above this cannot be exponentiated. By default `range` ends there, and larger
losses count as infinite.
"""


Tails = tuple[np.ndarray, np.ndarray, np.ndarray]
"""See `RoundLaw.tails`, float64 [n] each."""


class RoundLaw(Protocol):
    """The privacy loss of one round in one order.

    `tails` returns the probability of a larger loss under the first and under the
    second distribution of the pair, and a bound on the relative error of both, float64
    [n]. `range` returns losses below and above which the first distribution has at most
    a given mass. `missing` is the mass that the tails omit; an upper end adds it.
    """

    @property
    def missing(self) -> float: ...
    def __hash__(self) -> int: ...
    def tails(self, losses: np.ndarray) -> Tails: ...
    def range(self, mass: float, most: float = LARGEST) -> tuple[float, float]: ...


Laws = list[tuple[Sequence[RoundLaw], int]]
"""Laws of a round in each order, with the number of rounds that have them."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """Rounds with the same sampling and independent Gaussian noise.

    Attributes:
        schedule: noise of the rounds, at least one round.
        rate: sampling rate: a unit's probability of being in a round.
        laws: function from z, and the mass that may be cut off the loss, to a round's
            law in each order. The first order is usually the most costly. Equal laws
            are the same objects.
        uses: number of units that are zeroed out together.
        moves: largest distance, in thresholds, by which a unit moves a sum.
        first_is_worst: whether the first order's epsilon is proven to be the larger.
    """

    schedule: Schedule
    rate: float
    laws: Callable[[float, float], Sequence[RoundLaw]]
    uses: int = 1
    moves: float = 1.0
    first_is_worst: bool = False

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return sum(count for _, count in self.schedule)

    @property
    def joint(self) -> float:
        """Noise multiplier of all rounds as one Gaussian."""
        return joint_of(self.schedule)

    @property
    def least(self) -> float:
        """Least noise multiplier."""
        return min(z for z, _ in self.schedule)

    @property
    def no_grid(self) -> bool:
        """Whether the rate is 1, or losses leave the range of floating point."""
        return self.rate == 1.0 or self.least / self.moves < LEAST_NOISE

    @property
    def spacing(self) -> float:
        """Grid step of an upper end: a fraction of the noisiest round's typical loss.

        The error falls with the square of the step.
        """
        most = max(z for z, _ in self.schedule)
        variance = min(most**-2, 50.0)
        square = self.uses * math.expm1(variance)
        typical = self.rate * square**0.5
        coarsest = 1e-3
        if self.uses > 1:
            coarsest = 4e-3
        return float(np.clip(0.05 * typical, 1e-7, coarsest))

    def guess(self, delta: float) -> float:
        """Return the start of a search for epsilon.

        For several units at once it is that of one Gaussian at the root mean square
        count.
        """
        z = self.least / self.moves
        rate = self.rate
        uses = self.uses
        if uses == 1:
            return guess_epsilon(z, rate, self.rounds, delta)
        mean = uses * rate
        square = mean * (1.0 - rate) + mean**2
        joint = z / (self.rounds * square) ** 0.5
        loud = gaussian_epsilon(joint, delta)
        rate_of_any = min(uses * rate, 0.5)
        sampled = guess_epsilon(z, rate_of_any, self.rounds, delta)
        return max(sampled, loud)


@lru_cache(maxsize=64)
def _grid(
    law: RoundLaw, step: float, mass: float, upper: bool
) -> tuple[GridVariable, float]:
    """Return the loss of one round on a grid, and the probability cut off its top.

    It is for one end and one order.
    """
    low, high = law.range(mass)
    first = math.floor(low / step)
    last = math.ceil(high / step)
    indices = first + np.arange(last - first + 1)
    losses = indices * step
    tail, second_tail, off = law.tails(losses)
    if upper:
        lean = 1 + off
    else:
        lean = np.maximum(1 - off, 0.0)
    tail = np.minimum(tail * lean, 1.0)
    second_tail = np.minimum(second_tail * lean, 1.0)
    inside = np.maximum(tail[:-1] - tail[1:], 0.0)
    weights = np.append(inside, 0.0)
    infinite = 0.0
    if upper:
        ratio = np.exp(losses)
        moved = -1.0 / math.expm1(-step)
        # With n, m the cell's mass under the first and second law: right = (n - e^l m)
        # / (1 - e^-step).
        ratio = ratio[:-1]
        second_inside = second_tail[:-1] - second_tail[1:]
        right = (inside - ratio * second_inside) * moved
        # Each leaning term is off by at most twice its error; `second_tail` may have
        # left the range of numbers.
        larger_off = np.maximum(off[:-1], off[1:])
        terms = tail[:-1] + ratio * second_tail[:-1]
        slack = 4 * larger_off * terms * moved
        slack += 1e-300 * ratio
        right = np.clip(right + slack, 0.0, inside)
        weights[:-1] -= right
        weights[1:] += right
        weights[0] += max(1.0 - tail[0], 0.0)
        infinite = float(tail[-1]) + law.missing
    return GridVariable(first=first, weights=weights, step=step), infinite


def cut_mass(stages: Sequence[Stage], delta: float) -> float:
    """Return the probability that may be cut off a round's loss, in powers of two, so
    that many rounds and deltas share a grid.
    """
    rounds = sum(stage.rounds for stage in stages)
    power_of_delta = math.floor(math.log2(delta))
    power_of_rounds = (rounds - 1).bit_length()
    return _CUT * 2.0 ** (power_of_delta - power_of_rounds)


def laws_of(stages: Sequence[Stage], mass: float) -> Laws:
    """Return the laws of all rounds of all stages."""
    return [
        (stage.laws(z, mass), count) for stage in stages for z, count in stage.schedule
    ]


def _ends(
    stages: Sequence[Stage], mass: float, step: float, *, upper: bool
) -> list[Callable[[float], DeltaEnd]]:
    """Return a function from epsilon to an end of delta sharp there, for each order."""
    laws = laws_of(stages, mass)
    orders = len(laws[0][0])

    def end(order: int, near: float) -> DeltaEnd:
        parts = []
        log_finite = 0.0
        for law_of_order, count in laws:
            loss, cut = _grid(law_of_order[order], step, mass, upper)
            parts.append((loss, count))
            log_finite += count * math.log1p(-cut)
        tail = UpperTail(parts, around=near, kernel=LOSS)
        infinite = -math.expm1(log_finite)
        return DeltaEnd(tail, upper=upper, extra=infinite)

    return [functools.partial(end, order) for order in range(orders)]


def upper_end(
    stages: Sequence[Stage], delta: float, *, ceiling: float, start: float | None = None
) -> float:
    """Return an upper bound on epsilon in every order, for consecutive stages.

    The stages draw independently.

    Args:
        stages: the stages.
        delta: delta at which epsilon is stated.
        ceiling: an upper bound that is known already.
        start: start of the search; by default the first stage's guess.
    """
    step = min(stage.spacing for stage in stages)
    mass = cut_mass(stages, delta)
    first, *other_orders = _ends(stages, mass, step, upper=True)
    if start is None:
        start = stages[0].guess(delta)
    epsilon = crossing(first, delta=delta, start=start, ceiling=ceiling, upper=True)

    def fits(candidate: float) -> bool:
        return all(near(candidate).delta(candidate) <= delta for near in other_orders)

    return raised(epsilon, ceiling, fits)


def lower_end(
    stages: Sequence[Stage], delta: float, *, upper: float, step: float | None = None
) -> float:
    """Return a lower bound on epsilon in the first order, at most `upper`.

    `step` is the grid step, by default `fine_spacing`.
    """
    if step is None:
        step = fine_spacing(stages, delta, upper)
    mass = cut_mass(stages, delta)
    first, *_ = _ends(stages, mass, step, upper=False)
    return crossing(first, delta=delta, start=upper, ceiling=upper, upper=False)


def upper_curve(stage: Stage, epsilons: np.ndarray) -> list[np.ndarray]:
    """Return upper bounds on delta in each order at each epsilon >= 0, float64 [n].

    They are sharp where they are not small.
    """
    mass = cut_mass([stage], SMALL)
    curves = []
    for near in _ends([stage], mass, stage.spacing, upper=True):
        end = near(0.0)
        deltas = [end.delta(float(epsilon)) for epsilon in epsilons]
        curves.append(np.array(deltas))
    return curves


def fine_spacing(stages: Sequence[Stage], delta: float, upper: float) -> float:
    """Return the grid step of a lower end of all stages, given their upper end."""
    rounds = sum(stage.rounds for stage in stages)
    mass = cut_mass(stages, delta)
    several = stages[0].uses > 1
    steps = []
    widths = []
    for stage in stages:
        law, *_ = stage.laws(stage.least, mass)
        low, high = law.range(mass)
        widths.append(high - low)
        steps.append(stage.spacing)
    # Rounding down costs about half a step a round: 4e-4 in all; for very many rounds,
    # and for several units at once, where epsilon is large, a part of epsilon.
    slack = 8e-4
    if rounds > MANY_ROUNDS:
        slack = 1.6e-3 * rounds / MANY_ROUNDS
    if rounds > 4 * MANY_ROUNDS or several:
        noises = sum(len(stage.schedule) for stage in stages)
        if rounds <= MANY_ROUNDS:
            share = 2e-3
        elif noises == 1 and not several:
            share = 8e-3
        else:
            share = 3e-2
        slack = max(slack, share * upper)
    steps.append(slack / rounds)
    least = max(widths) / LOWER_CELLS
    return max(min(steps), least)
