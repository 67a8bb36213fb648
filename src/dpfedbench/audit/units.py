"""Units of an audit: canaries with a coordinate each, among ordinary units."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np

from dpsum.group_clipping import CoordinateGroups
from dpsum.randomness import stream

ORDINARY = 50
"""Number of coordinates of units that are not canaries."""

HEAD = 10
"""Number of coordinates that clients keep, if a method does not share all."""

LARGE = 1e30
"""Norm of a canary before clipping.

It is above every threshold that a rule may set, and within single precision.
"""


EMPTY = 200
"""Number of coordinates without contributions in each group, if there are groups.

An observer measures the noise of the group in them.
"""


class Coordinates:
    """Replacement for a model: a vector of weights, initially zero.

    Args:
        ordinary: number of coordinates of ordinary gradients.
        reserved: number of coordinates of canaries, one each.
        dimension: total number of coordinates; further ones stay empty. None: there are
            no further ones.
        groups: number of coordinate groups that are clipped separately. With more than
            one, each group has its own ordinary and reserved coordinates, and `EMPTY`
            ones behind them.
        head: number of coordinates behind all others that clients do not share.

    Attributes:
        own: slice of the canaries' coordinates, from the start of each group.
        shared_dimension: number of coordinates that clients share. Those of ordinary
            gradients and of canaries are among them.
    """

    def __init__(
        self,
        *,
        ordinary: int,
        reserved: int,
        dimension: int | None = None,
        groups: int = 1,
        head: int = 0,
    ) -> None:
        self.ordinary = ordinary
        self.reserved = reserved
        self.groups = groups
        self.shared_dimension = dimension or ordinary + reserved
        if groups > 1:
            self.shared_dimension = groups * (ordinary + reserved + EMPTY)
        self.dimension = self.shared_dimension + head
        self.own = slice(ordinary, ordinary + reserved)
        # A sum over a block of the model has all coordinates here: every block has room
        # for the canaries.
        self.blocks: dict[str, slice] = collections.defaultdict(
            lambda: slice(0, self.dimension)
        )

    def coordinate_groups(self, kind: str, noise: str) -> CoordinateGroups:
        """Return the coordinate groups, whatever those of the run's own model are."""
        size = self.shared_dimension // self.groups
        boundaries = [*range(0, self.shared_dimension, size), self.dimension]
        return CoordinateGroups(tuple(boundaries), noise)

    def spread(self, rows: np.ndarray) -> np.ndarray:
        """Return contributions [n, ordinary + reserved] in all groups, float32 [n, d].

        Ordinary gradients keep their norm, and a canary is in every group. Values in
        the head are larger than any threshold: a sum that included the head would clip
        everything else away.
        """
        if self.groups > 1:
            shares = rows.copy()
            shares[:, : self.ordinary] /= self.groups**0.5
            rows = np.tile(np.pad(shares, ((0, 0), (0, EMPTY))), self.groups)
        head = self.dimension - self.shared_dimension
        if head:
            rows = np.pad(rows, ((0, 0), (0, head)), constant_values=LARGE)
        return rows

    def shared_mask(self) -> np.ndarray:
        """Return the mask of the coordinates that clients share, bool [d]."""
        return np.arange(self.dimension) < self.shared_dimension

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Return zeros, float32 [d]."""
        return np.zeros(self.dimension, np.float32)


@dataclasses.dataclass(frozen=True)
class Units:
    """Contributions of one holder's units.

    They are the clients of a federation, or the records of one client.

    Attributes:
        coordinates: int64 [units], reserved coordinate of a canary; -1 for an ordinary
            unit.
        size: float32 [units], value of a canary in its coordinate (0 for a canary that
            was left out).
        gradients: float32 [units, ordinary], zero for canaries.
    """

    coordinates: np.ndarray
    size: np.ndarray
    gradients: np.ndarray

    @classmethod
    def without_canaries(cls, gradients: np.ndarray) -> Units:
        """Return ordinary units with gradients [units, ordinary]."""
        count = len(gradients)
        return cls(
            np.full(count, -1),
            np.zeros(count, np.float32),
            gradients.astype(np.float32),
        )

    def fill(self, ids: np.ndarray, out: np.ndarray) -> None:
        """Write the contributions of the units `ids` to float32 [n, d]."""
        ordinary = self.gradients.shape[1]
        out[:, :ordinary] = self.gradients[ids]
        out[:, ordinary:] = 0
        canaries = np.flatnonzero(self.coordinates[ids] >= 0)
        out[canaries, ordinary + self.coordinates[ids[canaries]]] = self.size[
            ids[canaries]
        ]


def canary_units(
    units: int,
    coins: np.ndarray,
    *,
    norm: float,
    seed: int,
    holder: int,
    places: np.ndarray,
) -> Units:
    """Return one canary per coin, and ordinary units.

    Ordinary gradients have random directions. Their norms are spread around `norm`
    log-normally, one deviation being a factor e, which is about as wide as clients'
    norms in training. The canaries are the first of the units at `places`.
    """
    canaries = len(coins)
    canary_ids = places[:canaries]
    coordinates = np.full(units, -1)
    coordinates[canary_ids] = np.arange(canaries)
    size = np.zeros(units, np.float32)
    size[canary_ids] = np.where(coins, LARGE, 0.0)
    rng = stream(seed, "audit-gradients", holder)
    gradients = np.zeros((units, ORDINARY), np.float32)
    drawn = rng.standard_normal((units - canaries, ORDINARY))
    drawn *= (
        norm
        * np.exp(rng.standard_normal((units - canaries, 1)))
        / np.linalg.norm(drawn, axis=1, keepdims=True)
    )
    gradients[np.setdiff1d(np.arange(units), canary_ids)] = drawn
    return Units(coordinates, size, gradients)
