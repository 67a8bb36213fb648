"""Each client takes part in one round that it draws in secret (Chua et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpsum.accounting import balls_and_bins
from dpsum.accounting.analyses.base import EPSILONS, Analysis, Deltas
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.groups import group_epsilon, known_draws_epsilon, squares_of_a_multinomial
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler, Schedule, ends


class BallsAndBins(Analysis):
    """By the privacy loss distribution. Of rounds of different noise the high end takes the least for all of them."""

    sampler = "balls-and-bins"
    explanation = "each client draws one secret round; privacy loss distribution, both directions, bracketed"
    images = (
        "every client that uses the image contributes zero; each of them draws a secret round: the high end by one "
        "client after another or by draws that are told, the low end by one client or by the sum of all releases; the "
        "exact value is not known"
    )

    def check_rate(self, sampler: Sampler) -> None:
        """Each client is in one of the rounds, so that a cohort is expected to be their number over the rounds."""
        super().check_rate(sampler)
        if not math.isclose(sampler["cohort"] * sampler["rounds"], sampler["clients"], rel_tol=1e-12):
            raise self.contradiction(sampler, "cohort x rounds is the number of clients where each is in one round")

    def bracket(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        _, most, done = ends(schedule)
        low = balls_and_bins.lower_epsilon(most, int(sampler["rounds"]), done, delta)
        return low, self.high(schedule, sampler, delta)

    def high(self, schedule: Schedule, sampler: Sampler, delta: float) -> float:
        least, _, done = ends(schedule)
        return balls_and_bins.upper_epsilon(least, int(sampler["rounds"]), done, delta)

    def deltas(self, schedule: Schedule, sampler: Sampler) -> Deltas:
        least, _, done = ends(schedule)
        return Deltas(EPSILONS, *balls_and_bins.upper_deltas(least, int(sampler["rounds"]), done, EPSILONS))

    def renyi(self, schedule: Schedule, sampler: Sampler, orders: Sequence[int]) -> np.ndarray:
        least, _, done = ends(schedule)
        return balls_and_bins.renyi(least, int(sampler["rounds"]), done, orders)

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        uses, done, rounds = int(use.counts().max()), len(multipliers), int(sampler["rounds"])
        least, most = min(multipliers), max(multipliers)
        low = balls_and_bins.lower_epsilon(most, rounds, done, delta)
        if uses == 1:
            return low, balls_and_bins.upper_epsilon(least, rounds, done, delta)
        if done == rounds:
            low = max(low, gaussian_epsilon(most * rounds**0.5 / uses, delta))
        told = known_draws_epsilon(*squares_of_a_multinomial(uses, rounds, done), least, delta)
        ceiling = min(gaussian_epsilon(least / uses, delta), told)
        high = group_epsilon(
            lambda share: balls_and_bins.upper_epsilon(least, rounds, done, share), uses, delta, ceiling=ceiling
        )
        return min(low, high), high
