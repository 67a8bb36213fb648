"""Cohorts of a fixed size, drawn afresh in each round and without replacement: most simulators' sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsum.accounting import fixed_size
from dpsum.accounting.analyses.base import EPSILONS, Analysis, Deltas
from dpsum.accounting.analyses.poisson import grouped
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.groups import group_epsilon, known_draws_epsilon, squares_of_hypergeometrics
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler, Schedule


class FixedSize(Analysis):
    """By the privacy loss distribution (`accounting.fixed_size`); rounds of different noise composed as they were."""

    sampler = "fixed-size"
    explanation = (
        "each round's cohort is a set of the same size, drawn afresh in secret: whoever is in it takes another's "
        "place; privacy loss distribution, bracketed; the low end is of one data set in all rounds"
    )
    images = (
        "every client that uses the image contributes zero: the high end by one client after another or by draws that "
        "are told, the low end by one client; the exact value is not known"
    )

    def units_of(self, sampler: Sampler) -> str:
        return units_of(sampler)

    def check_rate(self, sampler: Sampler) -> None:
        """A cohort is of a whole number of units, and its share is the rate."""
        super().check_rate(sampler)
        check_whole(self, sampler, "cohort")

    def bracket(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        return self._bracket(schedule, sampler, delta, fixed_size.ZERO_OUT)

    def replaced(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        return self._bracket(schedule, sampler, delta, fixed_size.REPLACE_ONE)

    def _bracket(self, schedule: Schedule, sampler: Sampler, delta: float, adjacency: str) -> Bracket:
        rate, quiet, loud = float(sampler["rate"]), grouped(schedule, least=True), grouped(schedule, least=False)
        low = fixed_size.lower_epsilon(loud, rate, delta, adjacency)
        return low, fixed_size.upper_epsilon(quiet, rate, delta, adjacency)

    def high(self, schedule: Schedule, sampler: Sampler, delta: float) -> float:
        return fixed_size.upper_epsilon(grouped(schedule, least=True), float(sampler["rate"]), delta)

    def deltas(self, schedule: Schedule, sampler: Sampler) -> Deltas:
        parts = grouped(schedule, least=True)
        return Deltas(EPSILONS, *fixed_size.upper_deltas(parts, float(sampler["rate"]), EPSILONS))

    def renyi(self, schedule: Schedule, sampler: Sampler, orders: Sequence[int]) -> np.ndarray:
        parts, wanted = grouped(schedule, least=True), tuple(map(int, orders))
        return np.sum([count * fixed_size.renyi(z, float(sampler["rate"]), wanted) for z, count in parts], axis=0)

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        uses, done, rate = int(use.counts().max()), len(multipliers), float(sampler["rate"])
        least, most = min(multipliers), max(multipliers)
        low = fixed_size.lower_epsilon(((most, done),), rate, delta)
        cohort, of = int(sampler["cohort"]), int(sampler[self.units_of(sampler)])
        told = known_draws_epsilon(*squares_of_hypergeometrics(uses, cohort, of, done), least, delta)
        ceiling = min(gaussian_epsilon(least / (uses * done**0.5), delta), told)
        high = group_epsilon(
            lambda share: fixed_size.upper_epsilon(((least, done),), rate, share), uses, delta, ceiling=ceiling
        )
        return min(low, high), high


def units_of(sampler: Sampler) -> str:
    """ "records" where a cohort is one of records, and the sampler says how many there are; else "clients"."""
    return "records" if "records" in sampler else "clients"


def check_whole(analysis: Analysis, sampler: Sampler, *keys: str) -> None:
    """Refuse a sampler where one of these keys is not a whole number from 1 on.

    Raises:
        DpsumError: names the key.
    """
    for key in keys:
        value = sampler.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 1 or value != int(value):
            raise analysis.contradiction(sampler, f"{key} is not a whole number from 1 on")
