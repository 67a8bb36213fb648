"""Correlated noise where units take part several times, in rounds that the observer may know: one Gaussian release.

As in one pass the releases are those of C S + sigma Z (`correlated_one_pass`), C found from the ledger's weights. A
unit moves several columns of C at once; by how much at most is bracketed in `accounting.several`, exactly for banded
encoders of no more bands than rounds lie between and for Toeplitz encoders of falling weights.

Rounds may be planned before there are weights: z is then taken for that of all releases together, which is what a noise
part that divides its encoder by the sensitivity of all participations makes it. The account of a ledger never does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dpsum.accounting.analyses.base import Reading
from dpsum.accounting.analyses.correlated_one_pass import gram_of
from dpsum.accounting.analyses.min_separation import MinSeparation
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.schedule import Bracket, Sampler, Schedule, ends
from dpsum.accounting.several import sensitivity
from dpsum.ledger import Release


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralReading(Reading):
    """As `Reading`; `least` is the low end of how far a unit moves all releases, in deviations of the noise."""

    least: float


class CorrelatedMinSeparation(MinSeparation):
    """All releases are one Gaussian, bracketed; exact where the worst set of rounds is known."""

    mechanism = "correlated-gaussian"
    explanation = (
        "rounds known to the observer, a unit's at least so many apart and at most so many in all, correlated noise: "
        "all releases are one Gaussian release of the encoder's columns of the worst such rounds, found from the "
        "ledger's weights"
    )

    def read(self, releases: Sequence[Release]) -> SeveralReading:
        read = super().read(releases)
        near, most = int(read.sampler["separation"]), int(read.sampler["participations"])
        low, high = sensitivity(gram_of(releases), near, most)
        rounds = len(releases)
        same = {"schedule": ((1 / high, rounds),), "claimed": ((1 / high, rounds),), "multipliers": [1 / high] * rounds}
        values = {field.name: getattr(read, field.name) for field in dataclasses.fields(read)}
        return SeveralReading(**values | same, least=low)

    def as_one(self, schedule: Schedule, sampler: Sampler) -> float:
        return ends(schedule)[0]

    def ends_of(self, reading: Reading, delta: float) -> Bracket:
        assert isinstance(reading, SeveralReading)
        _, high = self.bracket(reading.schedule, reading.sampler, delta)
        return min(gaussian_epsilon(1 / reading.least, delta), high), high
