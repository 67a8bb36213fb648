"""Ends of epsilon on finer grids, where the bracket of `compositions` is too wide.

The grids of `compositions` are made for the usual range. For little noise (losses far
above 1), very many rounds, or a tiny delta, this module computes both ends again, on a
grid whose step follows from the expected epsilon.

**Upper end.** As there: each loss is split between its grid neighbours so that E_Q
dP/dQ is kept (Doroshenko et al., Connect the Dots, 2022). Losses above `LARGEST`
cannot be exponentiated. They are rounded up.

**Lower end.** Rounding each loss down costs half a step a round, too much for many
rounds. Here the losses within half a step of a grid point are merged, which is
post-processing: the merged atom has the loss log of P's mass over Q's mass. Of the
heavier side only so much is merged that this loss is that of the grid point. The rest
of the lower half is rounded down to the next grid point, the rest of the upper half to
this one. What is lost falls with the square of the step.

**Offset.** Where sampling is rare, nearly all of a round's mass is at one loss near
log(1 - q). The grid has a point there.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import scipy

from dploss.compositions import (
    LARGEST,
    LEAST_GRID_DELTA,
    LEAST_USUAL_DELTA,
    Laws,
    RoundLaw,
    Stage,
    cut_mass,
    laws_of,
    upper_end,
)
from dploss.gaussian import FUNCTION, Bracket
from dploss.grid_sums import (
    LOSS,
    DeltaEnd,
    GridVariable,
    UpperTail,
    WindowTooWide,
    better_end,
    log_sum,
    proving_side,
    tilted_moments,
)

WIDTH = 0.02
LEAST_WIDTH = 1e-4
"""A bracket is wide where the high end is above the low end by more than both."""

_CELLS = 1 << 22
_USUAL_CELLS = 1 << 20
_GUESSES = 12
_TRIES = 7
_RAISES = 2
_LOOKS = 12
_REACH = 4.0
_LEAST_MASS = 1e-308
_LEAST_STEP = 1e-8


def is_wide(low: float, high: float) -> bool:
    """Return whether a bracket is wider than `WIDTH` and `LEAST_WIDTH`."""
    return high - low > max(WIDTH * low, LEAST_WIDTH)


@dataclasses.dataclass(frozen=True)
class _Halves:
    """The mass of both laws in each half cell, with error bounds.

    The edges are offset + step k / 2 for k from 2 `first` - 1 on, so that grid point j
    is the middle of two halves.
    """

    first: int
    points: np.ndarray
    mass: np.ndarray
    second: np.ndarray
    mass_off: np.ndarray
    other_off: np.ndarray
    mass_below: float
    mass_above: float


def _halves(
    law: RoundLaw, step: float, offset: float, span: tuple[float, float]
) -> _Halves:
    start, end = span
    first = math.floor((start - offset) / step)
    last = math.ceil((end - offset) / step)
    half_steps = np.arange(2 * first - 1, 2 * last + 2)
    edges = offset + half_steps * (step / 2)
    tail, second_tail, off = law.tails(edges)
    tail_off = tail * off + 1e-320
    other_off = second_tail * off + 1e-320
    mass_below = 1.0 - tail[0] - tail_off[0]
    mass_above = tail[-1] - tail_off[-1]
    return _Halves(
        first=first,
        points=offset + np.arange(first, last + 1) * step,
        mass=np.maximum(tail[:-1] - tail[1:], 0.0),
        second=np.maximum(second_tail[:-1] - second_tail[1:], 0.0),
        mass_off=tail_off[:-1] + tail_off[1:],
        other_off=other_off[:-1] + other_off[1:],
        mass_below=float(max(mass_below, 0.0)),
        mass_above=float(max(mass_above, 0.0)),
    )


def _bulk(halves: _Halves) -> float | None:
    """Return the mean loss of the cell that has most of the mass; None without one."""
    lower_mass = halves.mass[::2]
    upper_mass = halves.mass[1::2]
    mass = lower_mass + upper_mass
    second = halves.second
    at = int(np.argmax(mass))
    if mass[at] < 0.5:
        return None
    second_mass = second[2 * at] + second[2 * at + 1]
    second_mass = float(second_mass)
    if second_mass <= 0:
        return None
    return math.log(float(mass[at]) / second_mass)


@dataclasses.dataclass(frozen=True)
class _Grid:
    """One end of a round's loss on a grid that is shifted by `offset`."""

    loss: GridVariable
    offset: float
    infinite: float


def _merged(halves: _Halves) -> tuple[np.ndarray, float]:
    """Return the mass at each grid point after merging, and the slack of the bulk.

    The merging goes from the top down. A point has its upper half cell, and the part of
    the next lower half cell that its upper neighbour did not merge. This mass has
    losses above the point's, so that a share of the point's own lower half can be
    merged with it. The slack is the amount by which the point with the most mass may be
    raised.
    """
    lower_half = slice(0, None, 2)
    upper_half = slice(1, None, 2)
    ratio = np.exp(np.minimum(halves.points, LARGEST))
    spare = _least_excess(halves, upper_half, ratio)
    # Slack of the lower half cell at the next point, above this one.
    ratio_before = np.append(0.0, ratio[:-1])
    spare_of_lower = _least_excess(halves, lower_half, ratio_before)
    down = np.append(spare_of_lower[1:], 0.0)
    second_mass = halves.second[lower_half] * (1 + 4 * FUNCTION)
    gap = ratio * (second_mass + halves.other_off[lower_half])
    gap += halves.mass_off[lower_half] - halves.mass[lower_half]
    known = (halves.points <= LARGEST).tolist()
    spare_at = spare.tolist()
    down_at = down.tolist()
    gap_at = gap.tolist()
    cells = len(gap_at)
    shares = [0.0] * cells
    cell_mass = halves.mass[lower_half] + halves.mass[upper_half]
    bulk = int(np.argmax(cell_mass))
    unmerged = 0.0
    surplus = 0.0
    for at in reversed(range(cells)):
        available = spare_at[at] + unmerged * down_at[at]
        needed = gap_at[at]
        if not known[at] or available <= 0.0:
            share = 0.0
        elif available >= needed:
            share = 1.0
        else:
            share = available / needed * (1 - 1e-12)
        if at == bulk:
            surplus = available - needed
        shares[at] = share
        unmerged = 1.0 - share
    share_of = np.array(shares)
    mass = np.maximum(halves.mass - halves.mass_off, 0.0)
    lower_mass = mass[lower_half]
    weights = mass[upper_half] + share_of * lower_mass
    rounded_down = (1 - share_of) * lower_mass
    weights[:-1] += rounded_down[1:]
    weights[-1] += halves.mass_above
    bulk_weight = float(weights[bulk])
    return weights, surplus / max(bulk_weight, 1e-3)


def _least_excess(halves: _Halves, side: slice, ratio: np.ndarray) -> np.ndarray:
    """Return a lower bound on one side's mass minus `ratio` times the other law's."""
    excess = halves.mass[side] - halves.mass_off[side]
    second_mass = halves.second[side] * (1 + 4 * FUNCTION)
    second_mass = second_mass + halves.other_off[side]
    excess = excess - ratio * second_mass
    return np.asarray(np.maximum(excess, 0.0))


def _upper(law: RoundLaw, halves: _Halves, step: float, offset: float) -> _Grid:
    """Split each cell between two grid points; the cell is two half cells."""
    # Between points j and j + 1 lie the upper half of j and the lower half of j + 1.
    inside = _between(halves.mass)
    second_mass = _between(halves.second)
    inside_off = _between(halves.mass_off)
    other_off = _between(halves.other_off)
    inside = inside + inside_off
    points = halves.points[:-1]
    ratio = np.exp(np.minimum(points, LARGEST))
    moved = -1.0 / math.expm1(-step)
    second_mass = second_mass * (1 - 4 * FUNCTION) - other_off
    excess = inside - ratio * np.maximum(second_mass, 0.0)
    right = np.clip(excess * moved, 0.0, inside)
    right = np.where(points <= LARGEST, right, inside)
    weights = np.zeros(len(halves.points))
    weights[:-1] += inside - right
    weights[1:] += right
    first_off = halves.mass_off[0]
    weights[0] += halves.mass[0] + first_off + halves.mass_below
    weights[0] += 4 * first_off
    infinite = halves.mass[-1] + halves.mass_above
    infinite = infinite + 4 * halves.mass_off[-1]
    loss = GridVariable(first=halves.first, weights=weights, step=step)
    return _Grid(loss, offset, float(infinite) + law.missing)


def _between(values: np.ndarray) -> np.ndarray:
    """Add up the two half cells between each grid point and the next."""
    return values[1:-1:2] + values[2::2]


@lru_cache(maxsize=8)
def _grid(law: RoundLaw, step: float, mass: float, upper: bool) -> _Grid:
    """Return one end of a law's loss on a grid."""
    span = law.range(mass, math.inf)
    halves = _halves(law, step, 0.0, span)
    bulk = _bulk(halves)
    offset = 0.0
    if bulk is not None:
        offset = bulk
        halves = _halves(law, step, offset, span)
    if upper:
        return _upper(law, halves, step, offset)
    weights, surplus = _merged(halves)
    for _ in range(_RAISES):
        if bulk is None:
            break
        if not 1e-3 * step < surplus < step:
            break
        offset += surplus
        halves = _halves(law, step, offset, span)
        weights, surplus = _merged(halves)
    loss = GridVariable(first=halves.first, weights=weights, step=step)
    return _Grid(loss, offset, 0.0)


class _Sum:
    """The sum of all rounds' losses, at one end, in one order."""

    def __init__(self, grids: Sequence[tuple[_Grid, int]], *, upper: bool) -> None:
        self._parts = [(grid.loss, count) for grid, count in grids]
        self._offset = math.fsum(grid.offset * count for grid, count in grids)
        self._upper = upper
        logs = []
        for grid, count in grids:
            infinite = min(grid.infinite, 0.5)
            logs.append(count * math.log1p(-infinite))
        self._infinite = -math.expm1(math.fsum(logs))

    def position(self, epsilon: float) -> float:
        """Return the position of epsilon on the grid, on the safe side of rounding."""
        slack = 1e-13 * (abs(self._offset) + abs(epsilon))
        if self._upper:
            slack = -slack
        return epsilon - self._offset + slack

    def saddle_point(self, delta: float) -> tuple[float, float]:
        """Return the approximate epsilon of delta, with the deviation there.

        log delta is about K(t) - t K'(t) - log(t (1 + t) (2 pi K''(t))^1/2) at epsilon
        = K'(t), where K is the logarithm of the moment-generating function.
        """
        log_delta = math.log(delta)
        _, variance = tilted_moments(self._parts, 0.0)
        deviation = max(variance, 1e-300) ** 0.5
        low = math.log(1e-6 / deviation)
        high = math.log(1e6 / min(deviation, 1e3))
        for _ in range(60):
            middle = (low + high) / 2
            theta = math.exp(middle)
            mean, variance = tilted_moments(self._parts, theta)
            log_mgf = self._log_mgf(theta)
            deviation = max(variance, 1e-300) ** 0.5
            scale = theta * (1 + theta) * deviation
            spread = math.log1p(scale * 2.5)
            log_tail = log_mgf - theta * mean - spread
            if log_tail > log_delta:
                low = middle
            else:
                high = middle
        return mean + self._offset, deviation

    def _log_mgf(self, theta: float) -> float:
        """Return log E exp(theta S) of the coarse sum S."""
        logs = []
        for loss, count in self._parts:
            exponents = theta * loss.coarse_values + loss.coarse_log_weights
            logs.append(count * float(log_sum(exponents)))
        return math.fsum(logs)

    def epsilon(self, delta: float) -> float:
        """Return a proven end of epsilon; infinity or 0 where none is found."""
        proved = math.inf if self._upper else 0.0
        expected, _ = self.saddle_point(delta)
        near = max(expected, 1e-9)
        # Half the best tilt would leave a quarter of log(1 / delta) to the FFT.
        tilt = 0.5 if delta > 1e-20 else 1.0
        too_low = 0.0
        too_high = math.inf
        # Farther from the start of the search, a window would not fit into memory.
        first = near
        farthest = _CELLS * self._parts[0][0].step
        for _ in range(_LOOKS):
            if abs(near - first) > farthest:
                break
            around = self.position(near)
            try:
                tail = UpperTail(self._parts, around=around, kernel=LOSS, tilt=tilt)
            except WindowTooWide:
                break
            value, _ = tail.value(around)
            ratio = _log_ratio(value, delta)
            end = DeltaEnd(
                tail, upper=self._upper, position=self.position, extra=self._infinite
            )
            reach = _REACH / tail.theta
            root, passes = _root(end, delta, near, reach, self._upper)
            if root is not None:
                proved = better_end(proved, root, self._upper)
            if passes:
                break
            if ratio > 0.0:
                too_low = max(too_low, near)
            else:
                too_high = min(too_high, near)
            following = near + ratio * tilt / tail.theta
            if not too_low < following < too_high:
                following = _inside(near, too_low, too_high)
            is_near = abs(following - near) <= 1e-9 * near
            if is_near or too_high <= 1e-9:
                break
            near = following
        return proved


def _inside(near: float, too_low: float, too_high: float) -> float:
    """Return a point between two bounds, of which the upper may be missing."""
    if too_high == math.inf:
        return 2 * near
    return (too_low + too_high) / 2


def _log_ratio(value: float, delta: float) -> float:
    if value == math.inf:
        return 460.0
    log_value = math.log(max(value, 5e-324))
    ratio = log_value - math.log(delta)
    return min(max(ratio, -460.0), 460.0)


def _root(
    end: DeltaEnd, delta: float, near: float, reach: float, upper: bool
) -> tuple[float | None, bool]:
    """Return an epsilon that an end of delta proves, and whether the end crosses delta.

    The search is within about `reach` of `near`.
    """

    def excess(epsilon: float) -> float:
        return _log_ratio(end.delta(epsilon), delta)

    at = near
    move = reach / 16
    is_above = excess(near) > 0.0
    sign = 1.0
    if not is_above:
        sign = -1.0
    while abs(at - near) < reach:
        beyond = max(at + sign * move, 0.0)
        is_above_beyond = excess(beyond) > 0.0
        if is_above_beyond != is_above:
            low = min(at, beyond)
            high = max(at, beyond)
            root = float(
                scipy.optimize.brentq(excess, low, high, xtol=1e-12, rtol=1e-12)
            )
            return proving_side(excess, root, low, upper), True
        if beyond == 0.0:
            return 0.0, True
        at = beyond
        move *= 2
    if upper == is_above:
        return None, False
    return at, False


def is_unusual(stages: Sequence[Stage], delta: float) -> bool:
    """Return whether the grids of `compositions` are not made for these rounds."""
    if delta < LEAST_USUAL_DELTA:
        return True
    if any(stage.no_grid for stage in stages):
        return True
    mass = cut_mass(stages, delta)
    step = min(stage.spacing for stage in stages)
    for stage in stages:
        law, *_ = stage.laws(stage.least, mass)
        low, high = law.range(mass, math.inf)
        if high > LARGEST:
            return True
        if (high - low) / step > _USUAL_CELLS:
            return True
    return False


def best_upper_end(stage: Stage, delta: float, ceiling: float) -> float:
    """Return the upper end of a stage's epsilon, on the grid that suits the stage.

    A search on the usual grid can end far above the true epsilon. If the end is far
    above the expected one, it is computed again on a finer grid.
    """
    if is_unusual([stage], delta):
        return _refined_high(stage, delta, ceiling)
    try:
        end = upper_end([stage], delta, ceiling=ceiling)
    except WindowTooWide:
        return _refined_high(stage, delta, ceiling)
    if end <= 1.5 * stage.guess(delta) + 0.05:
        return end
    mass = cut_mass([stage], delta)
    laws = laws_of([stage], mass)
    step = _widest(laws, mass) / 256
    coarse_sum = _sum(laws, 0, step, mass, upper=True)
    expected, _ = coarse_sum.saddle_point(delta)
    if end <= 1.1 * expected:
        return end
    return _refined_high(stage, delta, end)


def _refined_high(stage: Stage, delta: float, ceiling: float) -> float:
    """Return the high end on finer grids, which is at most `ceiling`."""
    _, high = refined((stage,), delta, 0.0, ceiling, upper_only=True)
    return high


def _widest(laws: Laws, mass: float) -> float:
    """Return the widest range of a round's loss in its first order."""
    widths = []
    for orders, _ in laws:
        low, high = orders[0].range(mass, math.inf)
        widths.append(high - low)
    return max(widths)


@lru_cache(maxsize=1024)
def refined(
    stages: tuple[Stage, ...],
    delta: float,
    low: float,
    high: float,
    upper_only: bool = False,
) -> Bracket:
    """Return a bracket that is at most as wide as the given one.

    Args:
        stages: rounds one after another whose draws are independent, at rates below 1.
        delta: in (0, 1).
        low, high: proven ends that are known already; `high` is finite.
        upper_only: whether to return the low end unchanged.
    """
    if delta < LEAST_GRID_DELTA:
        if upper_only:
            return low, high
        # Epsilon grows as delta falls, so a low end at a larger delta is one here.
        low_at_grid_delta, _ = refined(stages, LEAST_GRID_DELTA, low, high)
        return min(low_at_grid_delta, high), high
    mass = max(cut_mass(stages, delta), _LEAST_MASS)
    laws = laws_of(stages, mass)
    widest = _widest(laws, mass)
    orders = len(laws[0][0])
    if all(stage.first_is_worst for stage in stages):
        orders = 1
    lower_step, upper_step = _steps(laws, delta, mass, widest)
    for _ in range(_TRIES):
        upper_sums = [
            _sum(laws, order, upper_step, mass, upper=True) for order in range(orders)
        ]
        worst = max(losses.epsilon(delta) for losses in upper_sums)
        high = min(high, worst)
        if upper_only or high <= low:
            break
        lower_sum = _sum(laws, 0, lower_step, mass, upper=False)
        candidate = min(lower_sum.epsilon(delta), high)
        low = max(low, candidate)
        if not is_wide(low, high):
            break
        # The steps are a guess; finer steps are tried while that is fast.
        lower_step = lower_step / 3
        upper_step = upper_step / 3
        if min(lower_step, upper_step) * _CELLS < widest:
            break
    return low, high


def _steps(laws: Laws, delta: float, mass: float, widest: float) -> tuple[float, float]:
    """Return steps of the lower and the upper grid that are fine enough, about.

    Both ends are approximated on coarse grids, without a convolution. The step of the
    end that still moves is made finer.
    """

    def saddle(step: float, upper: bool) -> tuple[float, float]:
        """Return about the epsilon of one end, and the deviation there."""
        return _sum(laws, 0, step, mass, upper=upper).saddle_point(delta)

    def least_step(deviation: float) -> float:
        least_of_width = widest / (_CELLS / 4)
        least_of_deviation = 20 * deviation / _CELLS
        return max(least_of_width, least_of_deviation, _LEAST_STEP)

    steps = [widest / 256, widest / 256]
    ends = [saddle(steps[0], False), saddle(steps[1], True)]
    for _ in range(_GUESSES):
        low, low_deviation = ends[0]
        high, high_deviation = ends[1]
        target_width = max(LEAST_WIDTH, WIDTH * low) / 3
        if high - low <= target_width:
            break
        if high <= target_width:
            break
        finer = [
            max(steps[0] / 3, least_step(low_deviation)),
            max(steps[1] / 3, least_step(high_deviation)),
        ]
        tried = [saddle(finer[0], False), saddle(finer[1], True)]
        low_moved = abs(tried[0][0] - low)
        high_moved = abs(tried[1][0] - high)
        if finer == steps:
            break
        side = 0
        if high_moved > low_moved:
            side = 1
        if finer[side] == steps[side]:
            side = 1 - side
        steps[side] = finer[side]
        ends[side] = tried[side]
    return steps[0], steps[1]


def _sum(laws: Laws, order: int, step: float, mass: float, *, upper: bool) -> _Sum:
    grids = [(_grid(orders[order], step, mass, upper), count) for orders, count in laws]
    return _Sum(grids, upper=upper)
