"""Ends of epsilon on grids that follow from the answer: where `compositions` is too wide.

The grids of `compositions` are made for the usual range. Where noise is little (losses
far above 1), rounds are very many, or delta is tiny, this module looks for both ends
again, on a grid whose step follows from the epsilon that is expected.

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

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import scipy

from dpsum.accounting.compositions import (
    LARGEST,
    LEAST_GRID_DELTA,
    LEAST_NOISE,
    LEAST_USUAL_DELTA,
    RoundLaw,
    Stage,
    cut_mass,
    upper_end,
)
from dpsum.accounting.gaussian import FUNCTION, Bracket
from dpsum.accounting.grid_sums import (
    LOSS,
    DeltaEnd,
    GridVariable,
    UpperTail,
    WindowTooWide,
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
    """Return whether a bracket is wider than it has to be."""
    return high - low > max(WIDTH * low, LEAST_WIDTH)


@dataclasses.dataclass(frozen=True)
class _Halves:
    """The mass of both laws in each half cell, with what each may be off by.

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
    first = math.floor((span[0] - offset) / step)
    last = math.ceil((span[1] - offset) / step)
    edges = offset + np.arange(2 * first - 1, 2 * last + 2) * (step / 2)
    tail, second_tail, off = law.tails(edges)
    tail_off = tail * off + 1e-320
    other_off = second_tail * off + 1e-320
    return _Halves(
        first=first,
        points=offset + np.arange(first, last + 1) * step,
        mass=np.maximum(tail[:-1] - tail[1:], 0.0),
        second=np.maximum(second_tail[:-1] - second_tail[1:], 0.0),
        mass_off=tail_off[:-1] + tail_off[1:],
        other_off=other_off[:-1] + other_off[1:],
        mass_below=float(max(1.0 - tail[0] - tail_off[0], 0.0)),
        mass_above=float(max(tail[-1] - tail_off[-1], 0.0)),
    )


def _bulk(halves: _Halves) -> float | None:
    """Return the mean loss of the cell that has most of the mass; None without one."""
    mass = halves.mass[::2] + halves.mass[1::2]
    at = int(np.argmax(mass))
    if mass[at] < 0.5:
        return None
    second_mass = float(halves.second[2 * at] + halves.second[2 * at + 1])
    return math.log(float(mass[at]) / second_mass) if second_mass > 0 else None


@dataclasses.dataclass(frozen=True)
class _Grid:
    """One round's loss on a grid that is moved by `offset`, at one end."""

    loss: GridVariable
    offset: float
    infinite: float


def _merged(halves: _Halves) -> tuple[np.ndarray, float]:
    """Return the mass at each grid point after merging, and what the bulk has to spare.

    From the top down: a point has its upper half cell, and what its upper neighbour
    did not merge of the lower half cell beside it. This mass has losses above the
    point's, so that a share of the point's own lower half can be merged with it. The
    second value is by how much the point with the most mass may be raised.
    """
    lower_half = slice(0, None, 2)
    upper_half = slice(1, None, 2)
    ratio = np.exp(np.minimum(halves.points, LARGEST))
    spare = _least_excess(halves, upper_half, ratio)
    # What the lower half beside the next point has to spare above this one.
    down = np.append(
        _least_excess(halves, lower_half, np.append(0.0, ratio[:-1]))[1:], 0.0
    )
    gap = ratio * (
        halves.second[lower_half] * (1 + 4 * FUNCTION) + halves.other_off[lower_half]
    )
    gap += halves.mass_off[lower_half] - halves.mass[lower_half]
    known = (halves.points <= LARGEST).tolist()
    spare_at = spare.tolist()
    down_at = down.tolist()
    gap_at = gap.tolist()
    shares = [0.0] * len(gap_at)
    bulk = int(np.argmax(halves.mass[lower_half] + halves.mass[upper_half]))
    unmerged = 0.0
    surplus = 0.0
    for at in range(len(gap_at) - 1, -1, -1):
        have = spare_at[at] + unmerged * down_at[at]
        share = 0.0
        if known[at] and have > 0.0:
            share = 1.0 if have >= gap_at[at] else have / gap_at[at] * (1 - 1e-12)
        if at == bulk:
            surplus = have - gap_at[at]
        shares[at] = share
        unmerged = 1.0 - share
    share_of = np.array(shares)
    mass = np.maximum(halves.mass - halves.mass_off, 0.0)
    weights = mass[upper_half] + share_of * mass[lower_half]
    weights[:-1] += ((1 - share_of) * mass[lower_half])[1:]
    weights[-1] += halves.mass_above
    return weights, surplus / max(float(weights[bulk]), 1e-3)


def _least_excess(halves: _Halves, side: slice, ratio: np.ndarray) -> np.ndarray:
    """Return at least the mass on one side less `ratio` times the other law's."""
    excess = halves.mass[side] - halves.mass_off[side]
    second_mass = halves.second[side] * (1 + 4 * FUNCTION) + halves.other_off[side]
    return np.asarray(np.maximum(excess - ratio * second_mass, 0.0))


def _upper(law: RoundLaw, halves: _Halves, step: float, offset: float) -> _Grid:
    """Split each cell between two grid points; the cell is two half cells."""
    # Between points j and j + 1 lie the upper half of j and the lower half of j + 1.
    inside = halves.mass[1:-1:2] + halves.mass[2::2]
    second_mass = halves.second[1:-1:2] + halves.second[2::2]
    inside_off = halves.mass_off[1:-1:2] + halves.mass_off[2::2]
    other_off = halves.other_off[1:-1:2] + halves.other_off[2::2]
    inside = inside + inside_off
    points = halves.points[:-1]
    ratio = np.exp(np.minimum(points, LARGEST))
    moved = -1.0 / math.expm1(-step)
    second_mass = second_mass * (1 - 4 * FUNCTION) - other_off
    right = (inside - ratio * np.maximum(second_mass, 0.0)) * moved
    right = np.where(points <= LARGEST, np.clip(right, 0.0, inside), inside)
    weights = np.zeros(len(halves.points))
    weights[:-1] += inside - right
    weights[1:] += right
    weights[0] += halves.mass[0] + halves.mass_off[0] + halves.mass_below
    weights[0] += 4 * halves.mass_off[0]
    infinite = halves.mass[-1] + halves.mass_above + 4 * halves.mass_off[-1]
    loss = GridVariable(first=halves.first, weights=weights, step=step)
    return _Grid(loss, offset, float(infinite) + law.missing)


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
    weights, raised = _merged(halves)
    for _ in range(_RAISES):
        if bulk is None or not 1e-3 * step < raised < step:
            break
        offset += raised
        halves = _halves(law, step, offset, span)
        weights, raised = _merged(halves)
    loss = GridVariable(first=halves.first, weights=weights, step=step)
    return _Grid(loss, offset, 0.0)


class _Sum:
    """The sum of all rounds' losses, at one end, in one order."""

    def __init__(self, grids: Sequence[tuple[_Grid, int]], *, upper: bool) -> None:
        self._parts = [(grid.loss, count) for grid, count in grids]
        self._offset = math.fsum(grid.offset * count for grid, count in grids)
        self._upper = upper
        logs = [count * math.log1p(-min(grid.infinite, 0.5)) for grid, count in grids]
        self._infinite = -math.expm1(math.fsum(logs)) if upper else 0.0

    def position(self, epsilon: float) -> float:
        """Return where epsilon is on the grid, on the safe side of rounding."""
        slack = 1e-13 * (abs(self._offset) + abs(epsilon))
        return epsilon - self._offset + (-slack if self._upper else slack)

    def saddle_point(self, delta: float) -> tuple[float, float, float]:
        """Return about the epsilon of delta, with the tilt and deviation there.

        log delta is about K(t) - t K'(t) - log(t (1 + t) (2 pi K''(t))^1/2) at epsilon
        = K'(t), for K the logarithm of the moment-generating function.
        """
        mean, variance = tilted_moments(self._parts, 0.0)
        deviation = max(variance, 1e-300) ** 0.5
        low = math.log(1e-6 / deviation)
        high = math.log(1e6 / min(deviation, 1e3))
        for _ in range(60):
            middle = (low + high) / 2
            theta = math.exp(middle)
            mean, variance = tilted_moments(self._parts, theta)
            logs = math.fsum(
                count
                * float(log_sum(theta * loss.coarse_values + loss.coarse_log_weights))
                for loss, count in self._parts
            )
            deviation = max(variance, 1e-300) ** 0.5
            spread = math.log1p(theta * (1 + theta) * deviation * 2.5)
            tail = logs - theta * mean - spread
            low, high = (middle, high) if tail > math.log(delta) else (low, middle)
        return mean + self._offset, theta, deviation

    def epsilon(self, delta: float) -> float:
        """Return a proved end of epsilon: infinity or 0 where none is found."""
        proved = math.inf if self._upper else 0.0
        near = max(self.saddle_point(delta)[0], 1e-9)
        # Half the best tilt would leave a quarter of log(1 / delta) to the FFT.
        tilt = 0.5 if delta > 1e-20 else 1.0
        too_low = 0.0
        too_high = math.inf
        # Farther from where the search began a window would not fit into memory.
        first = near
        farthest = _CELLS * self._parts[0][0].step
        for _ in range(_LOOKS):
            if abs(near - first) > farthest:
                break
            try:
                tail = UpperTail(
                    self._parts, around=self.position(near), kernel=LOSS, tilt=tilt
                )
            except WindowTooWide:
                break
            ratio = _log_ratio(tail.value(self.position(near))[0], delta)
            end = DeltaEnd(
                tail, upper=self._upper, position=self.position, extra=self._infinite
            )
            reach = _REACH / tail.theta
            root, passes = _root(end, delta, near, reach, self._upper)
            if root is not None:
                proved = min(proved, root) if self._upper else max(proved, root)
            if passes:
                break
            if ratio > 0.0:
                too_low = max(too_low, near)
            else:
                too_high = min(too_high, near)
            moved = near + ratio * tilt / tail.theta
            if not too_low < moved < too_high:
                moved = (too_low + too_high) / 2 if too_high < math.inf else 2 * near
            if too_high <= 1e-9 or abs(moved - near) <= 1e-9 * near:
                break
            near = moved
        return proved


def _log_ratio(value: float, delta: float) -> float:
    if value == math.inf:
        return 460.0
    return min(max(math.log(max(value, 5e-324)) - math.log(delta), -460.0), 460.0)


def _root(
    end: DeltaEnd, delta: float, near: float, reach: float, upper: bool
) -> tuple[float | None, bool]:
    """Return an epsilon that an end of delta proves, and whether the end passes delta
    there; looked for within about so far of `near`.
    """

    def excess(epsilon: float) -> float:
        return _log_ratio(end.delta(epsilon), delta)

    at = near
    move = reach / 16
    sign = 1.0 if excess(near) > 0.0 else -1.0
    while abs(at - near) < reach:
        beyond = max(at + sign * move, 0.0)
        if (excess(beyond) > 0.0) == (sign < 0.0):
            low, high = sorted((at, beyond))
            crossing_point = scipy.optimize.brentq(
                excess, low, high, xtol=1e-12, rtol=1e-12
            )
            return proving_side(excess, float(crossing_point), low, upper), True
        if beyond == 0.0:
            return 0.0, True
        at = beyond
        move *= 2
    return (at if upper == (sign < 0.0) else None), False


def is_unusual(stages: Sequence[Stage], delta: float) -> bool:
    """Return whether the grids of `compositions` are not made for these rounds."""
    if delta < LEAST_USUAL_DELTA:
        return True
    if any(stage.least / stage.moves < LEAST_NOISE for stage in stages):
        return True
    mass = cut_mass(stages, delta)
    step = min(stage.spacing for stage in stages)
    for stage in stages:
        low, high = stage.laws(stage.least, mass)[0].range(mass, math.inf)
        if high > LARGEST or (high - low) / step > _USUAL_CELLS:
            return True
    return False


def best_upper_end(stage: Stage, delta: float, ceiling: float) -> float:
    """Return the upper end of a stage's epsilon, of whichever grid is made for it.

    A search on the usual grid can end far above the epsilon, so that an end much above
    what is expected is looked for again.
    """
    if is_unusual([stage], delta):
        return refined((stage,), delta, 0.0, ceiling, upper_only=True)[1]
    try:
        end = upper_end([stage], delta, ceiling=ceiling)
    except WindowTooWide:
        return refined((stage,), delta, 0.0, ceiling, upper_only=True)[1]
    if end <= 1.5 * stage.guess(delta) + 0.05:
        return end
    mass = cut_mass([stage], delta)
    laws = [(stage.laws(z, mass), count) for z, count in stage.schedule]
    spans = [orders[0].range(mass, math.inf) for orders, _ in laws]
    step = max(span[1] - span[0] for span in spans) / 256
    if end <= 1.1 * _sum(laws, 0, step, mass, upper=True).saddle_point(delta)[0]:
        return end
    return refined((stage,), delta, 0.0, end, upper_only=True)[1]


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
        low, high: proved ends that are known already; `high` is finite.
        upper_only: the low end is returned as it is given.
    """
    if delta < LEAST_GRID_DELTA:
        if upper_only:
            return low, high
        # Epsilon grows as delta falls, so a low end at a larger delta is one here.
        return min(refined(stages, LEAST_GRID_DELTA, low, high)[0], high), high
    mass = max(cut_mass(stages, delta), _LEAST_MASS)
    laws = [
        (stage.laws(z, mass), count) for stage in stages for z, count in stage.schedule
    ]
    spans = [orders[0].range(mass, math.inf) for orders, _ in laws]
    widest = max(span[1] - span[0] for span in spans)
    orders = 1 if all(stage.first_is_worst for stage in stages) else len(laws[0][0])
    steps = _steps(laws, delta, mass, widest)
    if steps is None:
        return low, high
    for _ in range(_TRIES):
        ends = [
            _sum(laws, order, steps[1], mass, upper=True) for order in range(orders)
        ]
        high = min(high, max(losses.epsilon(delta) for losses in ends))
        if upper_only or high <= low:
            break
        lower = _sum(laws, 0, steps[0], mass, upper=False)
        low = max(low, min(lower.epsilon(delta), high))
        if not is_wide(low, high):
            break
        # The steps are a guess; finer ones are tried while that is quick.
        steps = steps[0] / 3, steps[1] / 3
        if min(steps) * _CELLS < widest:
            break
    return low, high


def _steps(
    laws: Sequence[tuple[Sequence[RoundLaw], int]],
    delta: float,
    mass: float,
    widest: float,
) -> tuple[float, float] | None:
    """Return steps of the lower and the upper grid that are fine enough, about.

    Both ends are approximated on coarse grids, without a convolution. The step of the
    end that still moves is made finer. None where an end is not to be had.
    """

    def saddle(step: float, upper: bool) -> tuple[float, float]:
        point = _sum(laws, 0, step, mass, upper=upper).saddle_point(delta)
        return point[0], point[2]

    steps = [widest / 256, widest / 256]
    ends = [saddle(steps[0], False), saddle(steps[1], True)]
    for _ in range(_GUESSES):
        width = ends[1][0] - ends[0][0]
        target_width = max(LEAST_WIDTH, WIDTH * ends[0][0]) / 3
        if width <= target_width or ends[1][0] <= target_width:
            break
        least = [
            max(widest / (_CELLS / 4), 20 * ends[side][1] / _CELLS, _LEAST_STEP)
            for side in (0, 1)
        ]
        finer = [max(step / 3, most) for step, most in zip(steps, least, strict=True)]
        tried = [saddle(finer[0], False), saddle(finer[1], True)]
        moved = [abs(tried[side][0] - ends[side][0]) for side in (0, 1)]
        if finer == steps:
            break
        side = int(moved[1] > moved[0])
        if finer[side] == steps[side]:
            side = 1 - side
        steps[side] = finer[side]
        ends[side] = tried[side]
    return steps[0], steps[1]


def _sum(
    laws: Sequence[tuple[Sequence[RoundLaw], int]],
    order: int,
    step: float,
    mass: float,
    *,
    upper: bool,
) -> _Sum:
    grids = [(_grid(orders[order], step, mass, upper), count) for orders, count in laws]
    return _Sum(grids, upper=upper)
