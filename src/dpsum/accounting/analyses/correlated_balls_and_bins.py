"""Correlated noise where each client takes part in one secret round: both ends from the ledger's weights.

What the high end reads of the encoder is how far its columns overlap (`correlated_bins.overlaps`). It stands in the
sampler of a reading as "overlaps", where a plan that knows its encoder puts it too; without it there is no number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from dpsum.accounting import correlated_bins
from dpsum.accounting.analyses.balls_and_bins import BallsAndBins
from dpsum.accounting.analyses.base import EPSILONS, Deltas, Reading
from dpsum.accounting.analyses.correlated_one_pass import CorrelatedReading, encoder_of
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler, Schedule, ends
from dpsum.errors import DpsumError
from dpsum.ledger import Release


class CorrelatedBallsAndBins(BallsAndBins):
    """A Gaussian that all rounds have in common and balls-and-bins beside it; see `accounting.correlated_bins`."""

    mechanism = "correlated-gaussian"
    explanation = (
        "each client draws one secret round, correlated noise: the high end is of the encoder's overlap that all of a "
        "class of rounds share as one Gaussian, and balls-and-bins beside it; the low end is of columns without overlap"
    )
    images = (
        "every client that uses the image contributes zero; each of them draws a secret round: the high end is that of "
        "known and equal rounds, the low end one client's"
    )

    def read(self, releases: Sequence[Release]) -> CorrelatedReading:
        read = super().read(releases)
        encoder, scale = encoder_of(releases)
        samplers = dict.fromkeys(read.samplers, self.sampler_of(releases))
        same = {"schedule": ((1 / scale, len(releases)),), "samplers": samplers}
        values = {field.name: getattr(read, field.name) for field in dataclasses.fields(read)}
        return CorrelatedReading(**values | same, gram=encoder.T @ encoder * scale**2)

    def sampler_of(self, releases: Sequence[Release]) -> Sampler:
        encoder = np.abs(encoder_of(releases)[0])
        return {**releases[0].sampler, "overlaps": correlated_bins.overlaps(encoder.T @ encoder)}

    def high(self, schedule: Schedule, sampler: Sampler, delta: float) -> float:
        return correlated_bins.upper_epsilon(*_of(schedule, sampler), delta)

    def bracket(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        return 0.0, self.high(schedule, sampler, delta)

    def ends_of(self, reading: Reading, delta: float) -> Bracket:
        assert isinstance(reading, CorrelatedReading)
        high = self.high(reading.schedule, reading.sampler, delta)
        low = correlated_bins.lower_epsilon(reading.gram, int(reading.sampler["rounds"]), delta)
        return min(low, high), high

    def deltas(self, schedule: Schedule, sampler: Sampler) -> Deltas:
        return Deltas(EPSILONS, *correlated_bins.upper_deltas(*_of(schedule, sampler), EPSILONS))

    def renyi(self, schedule: Schedule, sampler: Sampler, orders: Sequence[int]) -> np.ndarray:
        """Of the round told: one Gaussian."""
        return np.array(orders) * _of(schedule, sampler)[0][0] / 2

    def image_ends(self, reading: Reading, use: ImageUse, delta: float) -> Bracket:
        low, _ = self.ends_of(reading, delta)
        square = _of(reading.schedule, reading.sampler)[0][0]
        return low, max(low, gaussian_epsilon(square**-0.5 / int(use.counts().max()), delta))

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        raise DpsumError("the image level of correlated noise takes the ledger's weights, not z alone")


def _of(schedule: Schedule, sampler: Sampler) -> tuple[tuple[float, ...], int, int]:
    """Overlaps over the variance, rounds and rounds that were run.

    Raises:
        DpsumError: nothing is said of the encoder.
    """
    if "overlaps" not in sampler:
        raise DpsumError("correlated noise in secret rounds is accounted for by the encoder's weights, not by z alone")
    least, _, done = ends(schedule)
    return tuple(size / least**2 for size in sampler["overlaps"]), int(sampler["rounds"]), done
