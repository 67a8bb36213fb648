"""Units of an audit: canaries, each with a coordinate of its own, among ordinary
ones.
"""

from __future__ import annotations

import collections
import dataclasses

import numpy as np

from dpsum.group_clipping import CoordinateGroups
from dpsum.randomness import stream

ORDINARY = 50
"""Coordinates of units that are not canaries."""

HEAD = 10
"""Coordinates that clients keep to themselves, where a method does not share all."""

LARGE = 1e30
"""A canary's norm before clipping: above every threshold that a rule may set, within
single precision.
"""


EMPTY = 200
"""Coordinates of each group that nobody has anything in, where there are groups: what
an observer measures the noise of the group by.
"""


class Coordinates:
    """Stands in for a model: a vector of weights, all zero at the start.

    Args:
        ordinary: coordinates of ordinary gradients.
        reserved: coordinates of canaries alone, one each.
        dimension: of all, if there are others, which stay empty; None: there are none.
        groups: how many groups of coordinates are clipped each by itself. With more
            than one, each has the ordinary and the reserved coordinates of its own, and
            `EMPTY` ones behind them.
        head: coordinates behind all others that clients do not share.

    Attributes:
        own: where the canaries' are, of each group from its start.
        shared_dimension: the number of coordinates that clients share. Those of
            ordinary gradients and of canaries are among them.
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
        # A sum over a block of the model has all coordinates here: whichever it is, it
        # has room for the canaries.
        self.blocks: dict[str, slice] = collections.defaultdict(
            lambda: slice(0, self.dimension)
        )

    def coordinate_groups(self, kind: str, noise: str) -> CoordinateGroups:
        """Return the groups, whatever they are of in the run's own model."""
        size = self.shared_dimension // self.groups
        boundaries = [*range(0, self.shared_dimension, size), self.dimension]
        return CoordinateGroups(tuple(boundaries), noise)

    def spread(self, rows: np.ndarray) -> np.ndarray:
        """Return contributions [n, ordinary + reserved] in all groups, float32 [n, d].

        Ordinary gradients keep their norm, and a canary is in every group. What is in
        the head is larger than any threshold: a sum that took it would clip all else
        away.
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
        """Return which coordinates clients share, bool [d]."""
        return np.arange(self.dimension) < self.shared_dimension

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Zeros, float32 [d]."""
        return np.zeros(self.dimension, np.float32)


@dataclasses.dataclass(frozen=True)
class Units:
    """The contributions of one holder's units: the clients of a federation, or the
    records of one client.

    Attributes:
        coordinates: int64 [units], the reserved coordinate of a canary; -1 for an
            ordinary unit.
        size: float32 [units], what a canary has there (0 for one that was left out).
        gradients: float32 [units, ordinary], zero for canaries.
    """

    coordinates: np.ndarray
    size: np.ndarray
    gradients: np.ndarray

    @classmethod
    def without_canaries(cls, gradients: np.ndarray) -> Units:
        """Ordinary units with gradients [units, ordinary]."""
        count = len(gradients)
        return cls(
            np.full(count, -1),
            np.zeros(count, np.float32),
            gradients.astype(np.float32),
        )

    def fill(self, ids: np.ndarray, out: np.ndarray) -> None:
        """Write the contributions of these units to float32 [n, d]."""
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
    places: np.ndarray | None = None,
) -> Units:
    """A canary for each coin, then ordinary units: gradients in random directions,
    their norms spread around `norm`.

    Log-normal, a factor e to each side in one deviation: about as wide as clients'
    norms are in training. The canaries are the first of all units, or of those at
    `places`.
    """
    canaries = len(coins)
    canary_ids = np.arange(canaries) if places is None else places[:canaries]
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
