"""The whole numbers in which clients of a secure sum write their contributions; see `secure_sum`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from dpsum.errors import DpsumError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lattice:
    """The whole numbers that stand for contributions.

    Attributes:
        granularity: of one unit.
        bits: b; sums are modulo 2^b.
        coordinates: D, the power of two that the dimension is filled up to.
        clients: of a cohort, each of whom adds a share of the noise.
        counted: shares that the noise consists of at least, and that the account counts.
    """

    granularity: float
    bits: int
    coordinates: int
    clients: int
    counted: int

    @classmethod
    def of(
        cls, *, dimension: int, threshold: float, noise_multiplier: float, bits: int, deviations: float, clients: int,
        counted: int,
    ) -> Lattice:  # fmt: skip
        """The finest that keeps a coordinate of the sum within half the modulus, up to so many of its deviations.

        The deviation is an upper end: all clients point the same way, (L C)^2 / D after a rotation; rounding, L / 4
        units; and the noise of all shares.

        Raises:
            DpsumError: the modulus is too small for the noise and the rounding alone.
        """
        coordinates = 1 << max(dimension - 1, 0).bit_length()
        noise = noise_multiplier**2 * clients / counted
        rounding = clients / 4 + noise * (coordinates / 4 + math.sqrt(coordinates) / 2)
        room = 4.0 ** (bits - 1) / deviations**2 - rounding
        if room <= 0:
            least = math.floor(1 + math.log(deviations**2 * rounding, 4)) + 1
            raise DpsumError(
                f"noise.bits is {bits}, too few for the sum of {clients} clients' {coordinates} coordinates at "
                f"z = {noise_multiplier:g}: the smallest that holds it is {least}"
            )
        units = (noise + math.sqrt(noise**2 + 4 * room * (clients**2 / coordinates + noise))) / (2 * room)
        return cls(granularity=threshold * units, bits=bits, coordinates=coordinates, clients=clients, counted=counted)

    def bound(self, threshold: float) -> float:
        """The largest norm, in units, of a contribution of norm `threshold` after rounding.

        Kairouz et al. 2021, Proposition 22, with beta = e^-1/2: two of five draws or more are within it.
        """
        norm, root = threshold / self.granularity, math.sqrt(self.coordinates)
        return math.sqrt(min(norm**2 + self.coordinates / 4 + norm + root / 2, (norm + root) ** 2))


def said(lattice: Lattice, *, threshold: float, noise_multiplier: float) -> dict[str, Any]:
    """What the ledger says of the whole numbers, and of the variance of one client's share of the noise in units."""
    share = (noise_multiplier * lattice.bound(threshold)) ** 2 / lattice.counted
    return {**dataclasses.asdict(lattice), "share_variance": share}
