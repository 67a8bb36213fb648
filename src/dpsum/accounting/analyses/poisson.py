"""Each client in each round with the same chance, apart from the others: composed sampled Gaussians."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpsum.accounting import poisson
from dpsum.accounting.analyses.base import EPSILONS, Analysis, Deltas
from dpsum.accounting.groups import known_draws_epsilon, squares_of_binomials
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler, Schedule, ends

_GROUPS = 16
_HIGH_GROUPS, _LOW_RATIO = 32, 1.1  # the low end has a finer grid, so that each group costs it far more


def grouped(schedule: Schedule, *, least: bool) -> Schedule:
    """A long schedule with near multipliers put together, at their least (for a high end) or greatest (low end)."""
    if len(schedule) <= _GROUPS:
        return schedule
    groups: dict[int, list[tuple[float, int]]] = {}
    lowest, highest, _ = ends(schedule)
    width = math.log(_LOW_RATIO)
    if least:
        width = min(width, max(math.log(highest / lowest) / _HIGH_GROUPS, 1e-3))
    for z, count in schedule:
        groups.setdefault(math.floor(math.log(z) / width), []).append((z, count))
    pick = min if least else max
    return tuple((pick(z for z, _ in group), sum(count for _, count in group)) for group in groups.values())


class Poisson(Analysis):
    """By the privacy loss distribution; rounds of different noise are composed as they were."""

    sampler = "poisson"
    explanation = "each client in each round with the same chance; privacy loss distribution, bracketed"
    images = (
        "every client that uses the image contributes zero; each of them takes part on its own: a mixture of Gaussians "
        "over their number, composed over rounds, for the most used image"
    )

    def bracket(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        low = poisson.lower_epsilon(grouped(schedule, least=False), sampler["rate"], delta)
        return low, self.high(schedule, sampler, delta)

    def high(self, schedule: Schedule, sampler: Sampler, delta: float) -> float:
        return poisson.upper_epsilon(grouped(schedule, least=True), sampler["rate"], delta)

    def deltas(self, schedule: Schedule, sampler: Sampler) -> Deltas:
        parts = grouped(schedule, least=True)
        return Deltas(EPSILONS, *poisson.upper_deltas(parts, float(sampler["rate"]), EPSILONS))

    def renyi(self, schedule: Schedule, sampler: Sampler, orders: Sequence[int]) -> np.ndarray:
        parts = grouped(schedule, least=True)
        return np.sum([count * poisson.renyi(z, float(sampler["rate"]), orders) for z, count in parts], axis=0)

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        uses, done, rate = int(use.counts().max()), len(multipliers), float(sampler["rate"])
        least, most = min(multipliers), max(multipliers)
        # The server's noise stays as it is; were it not so, each end would take its safe side.
        low_schedule, high_schedule = ((most, done),), ((least, done),)
        high = poisson.upper_epsilon(high_schedule, rate, delta, uses)
        low = poisson.lower_epsilon(low_schedule, rate, delta, uses)
        if low == 0.0 < high:
            low = poisson.lower_epsilon(low_schedule, rate, delta)
            high = min(high, known_draws_epsilon(*squares_of_binomials(uses, rate, done), least, delta))
        return low, high
