"""Poisson-sampled Gaussians of several rates, one after another: a search, and the training that follows it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from dpsum.accounting import poisson
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.grid_sums import crossing, raised
from dpsum.accounting.schedule import Bracket, Schedule

Stage = tuple[Schedule, float]
"""A schedule, and a unit's chance q of being in a given round of it."""


@functools.lru_cache(maxsize=256)
def composed_ends(stages: tuple[Stage, ...], delta: float) -> Bracket:
    """Proved ends of the epsilon of all stages together.

    A unit is in all stages or in none, and each stage's rounds draw apart from the others', given what was released
    before: the pairs of all rounds are composed, whatever their noise and rate, as those of one stage are. The high end
    is of both directions, the low one of removal, with losses rounded down.

    Where a stage has no grid (rate 1, or very little noise) the high end is that of composed Gaussians, which sampling
    can only improve on. The low end is then that of the stages that are Gaussians, as one, and at least that of any
    stage alone: to see fewer releases tells no more.

    Args:
        stages: at least one, each of at least one round.
        delta: in (0, 1).
    """
    if len(stages) == 1:
        ((schedule, rate),) = stages
        return poisson.lower_epsilon(schedule, rate, delta), poisson.upper_epsilon(schedule, rate, delta)
    rounds = sum(count for schedule, _ in stages for _, count in schedule)
    alone = [poisson.upper_epsilon(schedule, rate, delta) for schedule, rate in stages]
    ceiling, start = _as_gaussians(stages, delta), min(sum(alone), 1.3 * max(alone))
    if any(rate == 1.0 or min(z for z, _ in schedule) < poisson.LEAST_NOISE for schedule, rate in stages):
        certain = [(schedule, rate) for schedule, rate in stages if rate == 1.0]
        lows = [poisson.lower_epsilon(schedule, rate, delta) for schedule, rate in stages]
        return max(*lows, _as_gaussians(certain, delta) if certain else 0.0), ceiling
    mass = poisson._cut_mass(rounds, delta)
    step = min(poisson._spacing(schedule, rate, 1) for schedule, rate in stages)

    def curve(near: float, step: float, *, upper: bool, add: bool = False) -> poisson._Composition:
        grids = [
            (poisson._grid(z, rate, step, mass, upper, add), count)
            for schedule, rate in stages
            for z, count in schedule
        ]
        return poisson._Composition(grids, upper=upper, near=near)

    high = crossing(lambda near: curve(near, step, upper=True), delta=delta, start=start, ceiling=ceiling, upper=True)
    high = raised(high, ceiling, lambda at: curve(at, step, upper=True, add=True).delta(at) <= delta)
    fine = poisson.fine_spacing(stages, delta, high)
    low = crossing(lambda near: curve(near, fine, upper=False), delta=delta, start=high, ceiling=high, upper=False)
    return low, high


def _as_gaussians(stages: Sequence[Stage], delta: float) -> float:
    """Epsilon of all rounds where everyone is in each."""
    squares = sum(count / z**2 for schedule, _ in stages for z, count in schedule)
    return gaussian_epsilon(squares**-0.5, delta)
