"""One pass over disjoint blocks that the observer may know: a client is in one Gaussian release, the rest follows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsum.accounting.analyses.base import EPSILONS, Analysis, Deltas
from dpsum.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler, Schedule, ends


class OnePass(Analysis):
    """Known blocks, exactly. Of rounds of different noise the client of the least noisy one is the worst off."""

    sampler = "one-pass"
    known = True
    explanation = "disjoint batches known to the observer: each client is in one Gaussian release; exact"
    images = (
        "every client that uses the image contributes zero; known blocks: one Gaussian for the worst image of this "
        "partition; exact"
    )

    def check_rate(self, sampler: Sampler) -> None:
        """Blocks are disjoint, so that there are no more of them than the clients last for."""
        super().check_rate(sampler)
        if sampler["cohort"] * sampler["rounds"] > sampler["clients"]:
            raise self.contradiction(sampler, "the clients do not last for so many rounds of one pass")

    def bracket(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        exact = gaussian_epsilon(self.as_one(schedule, sampler), delta)
        return exact, exact

    def deltas(self, schedule: Schedule, sampler: Sampler) -> Deltas:
        z = self.as_one(schedule, sampler)
        found = np.array([gaussian_delta(z, float(epsilon)) for epsilon in EPSILONS])
        return Deltas(EPSILONS, found, found)

    def renyi(self, schedule: Schedule, sampler: Sampler, orders: Sequence[int]) -> np.ndarray:
        return np.array(orders) / (2 * self.as_one(schedule, sampler) ** 2)

    def as_one(self, schedule: Schedule, sampler: Sampler) -> float:
        return ends(schedule)[0]

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        square = use.worst_square(multipliers)
        exact = gaussian_epsilon(square**-0.5, delta) if square else 0.0
        return exact, exact
