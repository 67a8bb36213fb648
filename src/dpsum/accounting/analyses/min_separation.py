"""Several participations of a unit in rounds that the observer may know, at least so many rounds apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from dpsum.accounting.analyses.base import Reading
from dpsum.accounting.analyses.fixed_size import check_whole, units_of
from dpsum.accounting.analyses.one_pass import OnePass
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler, Schedule, ends
from dpsum.accounting.several import heaviest
from dpsum.ledger import Release


class MinSeparation(OnePass):
    """As many Gaussian releases as a unit can be in, exactly: of rounds of different noise the worst allowed set."""

    sampler = "min-separation"
    explanation = (
        "rounds known to the observer, a unit's at least so many apart and at most so many in all: one Gaussian for "
        "all releases that it can be in; exact"
    )
    images = (
        "every client that uses the image contributes zero: at most one Gaussian with all of them in the same rounds, "
        "at least one client's"
    )

    def units_of(self, sampler: Sampler) -> str:
        return units_of(sampler)

    def check_rate(self, sampler: Sampler) -> None:
        """Rounds that are fewer apart than the separation share no unit, so that their cohorts fit among the units."""
        super(OnePass, self).check_rate(sampler)
        check_whole(self, sampler, "separation", "participations")
        units, near, most = sampler[self.units_of(sampler)], sampler["separation"], sampler["participations"]
        if sampler["cohort"] * min(near, sampler["rounds"]) > units:
            raise self.contradiction(sampler, f"{near} rounds in a row without a unit twice take more than there are")
        if most > -(-sampler["rounds"] // near):
            raise self.contradiction(sampler, f"nobody is in {most} of {sampler['rounds']} rounds, {near} apart")
        if sampler["cohort"] * sampler["rounds"] > units * most:
            raise self.contradiction(sampler, f"the {units:,} do not last for so many rounds of {most} participations")

    def as_one(self, schedule: Schedule, sampler: Sampler) -> float:
        least, _, done = ends(schedule)
        return least * min(int(sampler["participations"]), -(-done // int(sampler["separation"]))) ** -0.5

    def read(self, releases: Sequence[Release]) -> Reading:
        read = super().read(releases)
        if len(read.schedule) == 1:
            return read
        near, most = int(read.sampler["separation"]), int(read.sampler["participations"])
        done = len(read.multipliers)
        worst, _ = heaviest(np.array(read.multipliers) ** -2.0, near, most)
        # The constant noise whose `as_one` is that of the worst set of rounds.
        constant = (min(most, -(-done // near)) / worst) ** 0.5
        return dataclasses.replace(read, schedule=((constant, done),))

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        schedule = ((min(multipliers), len(multipliers)),)
        return 0.0, gaussian_epsilon(self.as_one(schedule, sampler) / int(use.counts().max()), delta)

    def image_ends(self, reading: Reading, use: ImageUse, delta: float) -> Bracket:
        low, _ = self.ends_of(reading, delta)
        z = self.as_one(reading.schedule, reading.sampler)
        return low, gaussian_epsilon(z / int(use.counts().max()), delta)
