"""Epochs over disjoint batches of a list that is shuffled anew: a unit is in at most one batch of each.

Where batches are known, a unit is in one Gaussian release an epoch: exact. Where they are secret, that is a high end
(what is told besides can only help), and little below it is known: `accounting.shuffled` has a low end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from dpsum.accounting import shuffled
from dpsum.accounting.analyses.base import Reading
from dpsum.accounting.analyses.fixed_size import check_whole
from dpsum.accounting.analyses.min_separation import MinSeparation
from dpsum.accounting.analyses.one_pass import OnePass
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.schedule import Bracket, Sampler, Schedule, ends
from dpsum.ledger import Release


class ShuffledEpochs(MinSeparation):
    """Of rounds of different noise the least noisy one of each epoch."""

    sampler = "shuffled-epochs"
    explanation = "disjoint batches in each epoch: a unit is in one Gaussian release an epoch"

    def check_rate(self, sampler: Sampler) -> None:
        """An epoch goes through the units once: the last of them may be left out, or come in a smaller batch."""
        super(OnePass, self).check_rate(sampler)
        check_whole(self, sampler, "cohort", "epoch")
        units, cohort = int(sampler[self.units_of(sampler)]), int(sampler["cohort"])
        if sampler["epoch"] not in (units // cohort, -(-units // cohort)):
            said = f"an epoch of batches of {cohort:,} of {units:,} has {units // cohort:,} rounds, or one more"
            raise self.contradiction(sampler, said)
        if sampler.get("batches") not in ("known", "secret"):
            raise self.contradiction(sampler, "batches is neither known nor secret")

    def as_one(self, schedule: Schedule, sampler: Sampler) -> float:
        """Where batches are secret, of the high end."""
        least, _, done = ends(schedule)
        return float(least * (-(-done // int(sampler["epoch"]))) ** -0.5)

    def read(self, releases: Sequence[Release]) -> Reading:
        read = OnePass.read(self, releases)
        if len(read.schedule) == 1 or read.sampler["batches"] == "secret":
            return read
        epoch, done = int(read.sampler["epoch"]), len(read.multipliers)
        worst = [min(read.multipliers[start : start + epoch]) for start in range(0, done, epoch)]
        constant = float(np.mean(np.array(worst) ** -2.0)) ** -0.5
        return dataclasses.replace(read, schedule=((constant, done),))

    def bracket(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        return self._bracket(schedule, sampler, delta, self.as_one(schedule, sampler))

    def replaced(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        return self._bracket(schedule, sampler, delta, self.as_one(schedule, sampler) / 2)

    def _bracket(self, schedule: Schedule, sampler: Sampler, delta: float, multiplier: float) -> Bracket:
        high = gaussian_epsilon(multiplier, delta)
        if sampler["batches"] == "known":
            return high, high
        _, most, done = ends(schedule)
        low = shuffled.lower_epsilon(most, float(sampler["rate"]), int(sampler["epoch"]), done, delta)
        return min(low, high), high

    def high(self, schedule: Schedule, sampler: Sampler, delta: float) -> float:
        return gaussian_epsilon(self.as_one(schedule, sampler), delta)

    def explain(self, reading: Reading) -> str:
        if reading.sampler["batches"] == "known":
            return f"{self.explanation}; the observer may know which; exact"
        return (
            f"{self.explanation}; which is secret, from which nothing is taken for the high end; the low end is of the "
            "largest of an epoch's sums where all others contribute alike (Chua et al. 2024)"
        )
