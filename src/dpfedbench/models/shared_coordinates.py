"""Coordinates of a model that its clients share with the server.

The server's sums, their clipping and noise, the ledger and the server's step use these
coordinates only. The others (a personal head) stay with the clients; the server's model
keeps their initial values.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch

from dpfedbench.errors import BenchError
from dpsum.group_clipping import CoordinateGroups

Vector = TypeVar("Vector", np.ndarray, torch.Tensor)


class SharedCoordinates:
    """The shared coordinates of a flat vector of weights.

    Args:
        net: the model, for the names of its tensors.
        mask: bool [d]; None: all coordinates are shared.

    Attributes:
        mask: bool [d].
        count: the number of shared coordinates.

    Raises:
        BenchError: the mask has another length, or selects no coordinate.
    """

    def __init__(self, net: Any, mask: np.ndarray | None = None) -> None:
        self._net = net
        self.dimension: int = net.dimension
        self.mask = np.ones(self.dimension, bool) if mask is None else mask
        if self.mask.shape != (self.dimension,) or self.mask.dtype != bool:
            raise BenchError(
                f"shared coordinates are {self.mask.dtype} {list(self.mask.shape)}:"
                f" expected bool [{self.dimension}], one for each weight"
            )
        self.count = int(self.mask.sum())
        if not self.count:
            raise BenchError(
                "clients share no coordinate of the model: share at least one"
            )
        self._positions = np.flatnonzero(self.mask)

    @property
    def all(self) -> bool:
        """Whether all coordinates are shared."""
        return self.count == self.dimension

    @property
    def head(self) -> np.ndarray:
        """Mask of the head's coordinates among the shared ones, bool [shared]."""
        return self.mask_of("head")

    def mask_of(self, *names: str) -> np.ndarray:
        """Return a mask of tensors or modules, bool [shared].

        Args:
            names: as for `Net.mask`.
        """
        return self._net.mask(*names)[self.mask]

    def select(self, vectors: Vector) -> Vector:
        """Return the shared coordinates [..., shared] of vectors [..., d].

        Raises:
            BenchError: the vectors have another length.
        """
        if self.all:
            return vectors  # the sum checks their size
        if vectors.shape[-1] != self.dimension:
            raise BenchError(
                f"clients sent vectors of {vectors.shape[-1]} coordinates, but the"
                f" model has {self.dimension}: send all of them; the loop selects the"
                f" {self.count} shared ones"
            )
        return vectors[..., self._positions]

    def put(self, vector: Vector, values: Vector) -> None:
        """Write shared coordinates [shared] to their places in a vector [d].

        Nothing is copied if all are shared: then `values` is the vector itself.
        """
        if not self.all:
            vector[self._positions] = values

    def expanded(self, values: np.ndarray) -> np.ndarray:
        """Return a vector [d] with these shared coordinates and zeros elsewhere."""
        if self.all:
            return values
        vector = np.zeros(self.dimension, values.dtype)
        self.put(vector, values)
        return vector

    def groups(self, groups: CoordinateGroups | None) -> CoordinateGroups | None:
        """Return the given groups, restricted to the shared coordinates."""
        if groups is None or self.all:
            return groups
        sizes = [int(self.mask[group].sum()) for group in groups.slices]
        names = groups.names or tuple(map(str, range(groups.count)))
        nonempty = [
            (name, size) for name, size in zip(names, sizes, strict=True) if size > 0
        ]
        boundaries = np.cumsum([0, *(size for _, size in nonempty)]).tolist()
        kept_names = tuple(name for name, _ in nonempty) if groups.names else ()
        return CoordinateGroups(tuple(boundaries), groups.noise, kept_names)
