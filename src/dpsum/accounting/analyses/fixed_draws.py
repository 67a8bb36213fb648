"""Cohorts of a fixed number of draws with replacement, afresh in each round: pfl-research's user sampler "random"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsum.accounting import fixed_draws, fixed_size
from dpsum.accounting.analyses.base import Analysis
from dpsum.accounting.analyses.poisson import grouped
from dpsum.accounting.schedule import Bracket, Sampler, Schedule
from dpsum.errors import DpsumError


class FixedDraws(Analysis):
    """By the privacy loss distribution (`accounting.fixed_draws`); rounds of different noise composed as they were."""

    sampler = "fixed-draws"
    explanation = (
        "each round's cohort is a number of draws from all clients with replacement, afresh in secret: a client may be "
        "in it several times, in the place of others; privacy loss distribution, bracketed; the low end is of one data "
        "set in all rounds"
    )

    def check_sampler(self, sampler: Sampler) -> None:
        """A cohort is a whole number of draws, and may have more than there are clients."""
        for key in ("clients", "cohort", "rounds"):
            value = sampler.get(key)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 1 or value != int(value):
                raise self.contradiction(sampler, f"{key} is not a whole number from 1 on")
        self.check_rate(sampler)

    def bracket(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        return self._bracket(schedule, sampler, delta, fixed_size.ZERO_OUT)

    def replaced(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        """Both ends for replace-one adjacency."""
        return self._bracket(schedule, sampler, delta, fixed_size.REPLACE_ONE)

    def _bracket(self, schedule: Schedule, sampler: Sampler, delta: float, adjacency: str) -> Bracket:
        drawn = int(sampler["clients"]), int(sampler["cohort"])
        low = fixed_draws.lower_epsilon(grouped(schedule, least=False), *drawn, delta, adjacency)
        return low, fixed_draws.upper_epsilon(grouped(schedule, least=True), *drawn, delta, adjacency)

    def high(self, schedule: Schedule, sampler: Sampler, delta: float) -> float:
        return fixed_draws.upper_epsilon(
            grouped(schedule, least=True), int(sampler["clients"]), int(sampler["cohort"]), delta
        )

    def renyi(self, schedule: Schedule, sampler: Sampler, orders: Sequence[int]) -> np.ndarray:
        raise DpsumError("no Renyi divergences of cohorts drawn with replacement: declare no search for them")
