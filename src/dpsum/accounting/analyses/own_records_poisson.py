"""Private sums that a few-shot client takes over a sample of its own examples: each with the same chance, in each step.

A client takes part once. What it does then is known but for the samples, which it draws in secret: for one of its
examples its releases are as many composed sampled Gaussians as it takes steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpsum.accounting import poisson
from dpsum.accounting.analyses.base import Reading
from dpsum.accounting.analyses.own_records import POISSON, check_steps, one_client
from dpsum.accounting.analyses.poisson import Poisson
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler
from dpsum.ledger import Release


class OwnRecordsPoisson(Poisson):
    """By the privacy loss distribution of one client's steps; of rounds of different noise the least noisy one's."""

    sampler = POISSON
    own = True
    shared_records = True
    explanation = (
        "a client takes part once, and one of its examples is in each of its steps with the same chance, in secret; "
        "privacy loss distribution, bracketed"
    )
    images = (
        "an image is an example of up to {uses} simulated clients, each of which makes releases of its own; composed"
    )

    units = "records"

    def check_rate(self, sampler: Sampler) -> None:
        """Each of the steps reads a record with the chance one over their number."""
        super().check_rate(sampler)
        check_steps(self, sampler)
        if not math.isclose(sampler["rate"] * sampler["steps"], 1.0, rel_tol=1e-12):
            raise self.contradiction(sampler, f"the rate of {sampler['steps']} steps is one over them")

    def read(self, releases: Sequence[Release]) -> Reading:
        read = super().read(releases)
        schedule = one_client(read.sampler, min(read.multipliers))
        return Reading(samplers=read.samplers, schedule=schedule, claimed=schedule, multipliers=read.multipliers)

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        ((z, steps),) = one_client(sampler, min(multipliers))
        rate, most = float(sampler["rate"]), steps * int(use.counts().max())
        low = poisson.lower_epsilon(one_client(sampler, max(multipliers)), rate, delta)
        return low, poisson.upper_epsilon(((z, most),), rate, delta)
