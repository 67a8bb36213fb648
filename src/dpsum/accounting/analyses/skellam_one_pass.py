"""Skellam noise in shares under a secure sum, in one pass over blocks that the server knows.

A client is in one release. There it moves whole numbers by at most the bound after rounding, and `accounting.skellam`
makes that one Gaussian release of multiplier z / `FACTOR`, in any number of dimensions. Nothing is taken on trust:
bound, variance and shares are found again from the ledger's threshold, granularity and coordinates.

The low end is a client whose rotated contribution is one coordinate of norm C, under the noise of all shares.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from dpsum.accounting.analyses.base import Reading
from dpsum.accounting.analyses.one_pass import OnePass
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler, Schedule, ends
from dpsum.accounting.skellam import lower_epsilon, step
from dpsum.errors import DpsumError
from dpsum.lattice import Lattice
from dpsum.ledger import Release

LEAST_VARIANCE = 256.0
"""Of the noise on a coordinate in units; sums of 1,000 coordinates have it from z = 1 on, whatever the modulus."""

FACTOR = 1.0007
"""How much more deviation than normal noise Skellam noise of that variance needs. Checked at each ledger's variance."""

_KEYS = ("granularity", "bits", "coordinates", "clients", "counted", "share_variance")
_MEND = "delete the run's folder and train again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecureReading(Reading):
    """As `Reading`; `worst` is the release whose client moves it most, over its noise."""

    worst: Release


class SkellamOnePass(OnePass):
    """Known blocks: one Gaussian release for a high end, one coordinate's Skellam noise for a low one."""

    mechanism = "skellam"
    explanation = (
        "disjoint batches known to the server: each client is in one sum with Skellam noise, at most one Gaussian "
        "release; the low end is one coordinate's"
    )
    images = (
        "every client that uses the image contributes zero; known blocks: at most one Gaussian for the worst image of "
        "this partition; the low end is one client's"
    )

    def bracket(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        return 0.0, gaussian_epsilon(self.as_one(schedule, sampler), delta)

    def as_one(self, schedule: Schedule, sampler: Sampler) -> float:
        return ends(schedule)[0] / FACTOR

    def read(self, releases: Sequence[Release]) -> Reading:
        found = super().read(releases)
        for number, event in enumerate(releases):
            _check(event, f"the ledger's release {number}")
        worst = max(releases, key=lambda event: _alone(event)[1] / math.sqrt(_alone(event)[0]))
        values = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        return SecureReading(**values, worst=worst)

    def ends_of(self, reading: Reading, delta: float) -> Bracket:
        assert isinstance(reading, SecureReading)
        high = gaussian_epsilon(self.as_one(reading.schedule, reading.sampler), delta)
        return min(lower_epsilon(*_alone(reading.worst), delta), high), high

    def image_ends(self, reading: Reading, use: ImageUse, delta: float) -> Bracket:
        low, _ = self.ends_of(reading, delta)
        square = use.worst_square(reading.multipliers)
        high = gaussian_epsilon(square**-0.5 / FACTOR, delta) if square else 0.0
        return min(low, high), high

    def explain(self, reading: Reading) -> str:
        assert isinstance(reading, SecureReading)
        told = reading.worst.secure or {}
        lost = told["clients"] - told["counted"]
        return (
            f"{self.explanation}; assumes secure aggregation that shows the server the sum modulo 2^{told['bits']} "
            f"alone, with an honest majority, and counts {told['counted']} of {told['clients']} clients' shares of the "
            f"noise: {lost} may drop out or tell theirs"
        )


def _alone(event: Release) -> tuple[float, int]:
    """Variance of all shares' noise in units, and by how many a client can move one coordinate by itself."""
    said = event.secure or {}
    return said["share_variance"] * said["clients"], math.floor(float(np.max(event.threshold)) / said["granularity"])


def _check(event: Release, where: str) -> None:
    """Refuse a release that is not what `secure_sum` makes.

    Raises:
        DpsumError: something is missing, sensitivity or noise is not what the whole numbers give, or there is too
            little noise for the analysis.
    """
    said = event.secure
    if said is None or set(said) != set(_KEYS):
        raise DpsumError(f"{where} does not say which whole numbers it is of ({', '.join(_KEYS)}): {_MEND}")
    if not 1 <= said["counted"] <= said["clients"]:
        raise DpsumError(f"{where} counts {said['counted']} of {said['clients']} clients' noise: {_MEND}")
    if said["clients"] != event.sampler["cohort"]:
        raise DpsumError(
            f"{where} has shares of noise of {said['clients']} clients, but its sampler has {event.sampler['cohort']} "
            "in a round: its mechanism is not the one accounted for"
        )
    threshold, unit = float(np.max(event.threshold)), said["granularity"]
    lattice = Lattice(**{key: value for key, value in said.items() if key != "share_variance"})
    reach = unit * lattice.bound(threshold)
    if event.dimension > said["coordinates"] or reach > np.max(event.sensitivity) * (1 + 1e-9):
        raise DpsumError(
            f"{where} declares sensitivity {event.sensitivity}, but rounding {event.dimension} coordinates makes it "
            f"{reach:g}: its mechanism is not the one accounted for"
        )
    variance = said["share_variance"] * said["counted"]
    if np.max(event.noise_std) > unit * math.sqrt(variance) * (1 + 1e-9):
        raise DpsumError(
            f"{where} has noise of deviation {event.noise_std}, but {said['counted']} shares come to "
            f"{unit * math.sqrt(variance):g}: its mechanism is not the one accounted for"
        )
    if variance < LEAST_VARIANCE or step(variance) * math.sqrt(variance) > FACTOR:
        raise DpsumError(
            f"{where} has noise of variance {variance:.4g} units on a coordinate, below the {LEAST_VARIANCE:g} of its "
            "analysis: raise noise.bits or noise.multiplier"
        )
