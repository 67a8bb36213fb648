"""Poisson-sampled Gaussians of several rates, one after another: a search, and the training that follows it."""

from __future__ import annotations

import functools

from dpfedbench.accounting import poisson
from dpfedbench.accounting.gaussian import gaussian_epsilon
from dpfedbench.accounting.grid_sums import crossing, raised
from dpfedbench.accounting.schedule import Bracket, Schedule

Stage = tuple[Schedule, float]
"""A schedule, and a unit's chance q of being in a given round of it."""


@functools.lru_cache(maxsize=256)
def composed_ends(stages: tuple[Stage, ...], delta: float) -> Bracket:
    """Proved ends of the epsilon of all stages together: the low one is that of the worst stage alone.

    Args:
        stages: at least one, each of at least one round.
        delta: in (0, 1).
    """
    if len(stages) == 1:
        ((schedule, rate),) = stages
        return poisson.lower_epsilon(schedule, rate, delta), poisson.upper_epsilon(schedule, rate, delta)
    rounds = sum(count for schedule, _ in stages for _, count in schedule)
    squares = sum(count / z**2 for schedule, _ in stages for z, count in schedule)
    alone = [poisson.upper_epsilon(schedule, rate, delta) for schedule, rate in stages]
    ceiling, start = gaussian_epsilon(squares**-0.5, delta), min(sum(alone), 1.3 * max(alone))
    low = max(poisson.lower_epsilon(schedule, rate, delta) for schedule, rate in stages)
    # Rate 1 and very little noise have no grid; composed Gaussians are a ceiling for both.
    if any(rate == 1.0 or min(z for z, _ in schedule) < poisson.LEAST_NOISE for schedule, rate in stages):
        return low, ceiling
    mass = poisson._cut_mass(rounds, delta)
    step = min(poisson._spacing(schedule, rate, 1) for schedule, rate in stages)

    def curve(near: float, *, add: bool = False) -> poisson._Composition:
        grids = [
            (poisson._grid(z, rate, step, mass, True, add), count) for schedule, rate in stages for z, count in schedule
        ]
        return poisson._Composition(grids, upper=True, near=near)

    high = crossing(curve, delta=delta, start=start, ceiling=ceiling, upper=True)
    return low, raised(high, ceiling, lambda at: curve(at, add=True).delta(at) <= delta)
