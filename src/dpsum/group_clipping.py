"""Clipping by groups of coordinates: each group has its own threshold and its own noise.

A group is a set of coordinates, for instance one tensor or one layer of a network.
McMahan et al. (2018, Section 2) clip each layer of a model difference; DP-MAML (Section
5.2.1) has adaptive thresholds per layer.

Formal guarantee. Each contribution is clipped to C_g in every group g, and the released
sum has independent Gaussian noise of deviation sigma_g on the coordinates of group g.
Divide the coordinates of each group by sigma_g: the noise is then standard normal, and
under zero-out adjacency one contribution moves the sum by at most

    mu = sqrt(sum_g (C_g / sigma_g)^2)

in L2 norm. So the release has exactly the privacy of a flat Gaussian release with noise
multiplier 1 / mu (Dong, Roth and Su 2022, Theorem 2.7 and Corollary 3.3), also where
the cohort is sampled. Noise of z C_g in each of m groups protects like z / sqrt(m). With
replace-one adjacency C_g and sigma_g both double.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpsum.errors import DpsumError
from dpsum.lazy import np
from dpsum.parameters import check_range
from dpsum.private_sum import PrivateSum, add_rows, double, rows_of

NOISE_BY_GROUP = ("joint", "per-group", "equal-shares")
"""Readings of a noise multiplier for groups of coordinates; see `CoordinateGroups`."""

RowAdder = Callable[[Any, Any, Any, Any], None]
"""Adds clipped rows [n, d] to a total [d]; `private_sum.add_rows` is one."""


@dataclasses.dataclass(frozen=True)
class CoordinateGroups:
    """A partition of the coordinates of a flat vector into contiguous groups.

    Attributes:
        boundaries: the start of every group and the end of the last, ascending, from 0
            to the number of coordinates.
        noise: reading of a noise multiplier z. "joint": the deviation is z sqrt(sum
            C_g^2) in all groups. "equal-shares": it is z sqrt(m) C_g in group g of m.
            Both are as private as z. "per-group": it is z C_g in group g, which is as
            private as z / sqrt(m), although papers account for z.
        names: names of the groups, for the ledger; empty if they have none.

    Raises:
        DpsumError: the boundaries do not ascend from 0, the reading is unknown, or the
            number of names is not the number of groups.
    """

    boundaries: tuple[int, ...]
    noise: str = "joint"
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the boundaries and the reading."""
        ends = list(self.boundaries)
        if len(ends) < 2 or ends[0] != 0 or ends != sorted(set(ends)):
            raise DpsumError(
                f"the boundaries of groups are {_shown(ends)}: they must ascend from 0"
                " to the number of coordinates"
            )
        if self.noise not in NOISE_BY_GROUP:
            raise DpsumError(
                f"noise by group is {self.noise!r}: it must be one of"
                f" {', '.join(NOISE_BY_GROUP)}"
            )
        if self.names and len(self.names) != self.count:
            raise DpsumError(
                f"{self.count} groups have {len(self.names)} names: name all groups"
                " or none"
            )

    @classmethod
    def from_slices(
        cls, slices: Mapping[str, slice], dimension: int, *, noise: str = "joint"
    ) -> CoordinateGroups:
        """Return the groups that named slices of a flat vector form.

        Args:
            slices: slices of the flat vector by name of the group, in any order.
            dimension: number of coordinates of the vector.
            noise: reading of a noise multiplier; see the class.

        Raises:
            DpsumError: slices overlap, or leave coordinates out.
        """
        boundaries = [0]
        names = sorted(slices, key=lambda name: (slices[name].start, slices[name].stop))
        for name in names:
            start = slices[name].start
            if start != boundaries[-1]:
                if start < boundaries[-1]:
                    fault = "overlaps the group before it"
                else:
                    fault = f"leaves coordinates {boundaries[-1]} to {start} out"
                raise DpsumError(
                    f"group {name} {fault}: each coordinate must be in exactly one"
                    " group"
                )
            boundaries.append(slices[name].stop)
        if boundaries[-1] != dimension:
            raise DpsumError(
                f"the groups cover {boundaries[-1]} coordinates of {dimension}: each"
                " coordinate must be in exactly one group"
            )
        return cls(tuple(boundaries), noise, tuple(names))

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.boundaries) - 1

    @property
    def dimension(self) -> int:
        """Number of coordinates of all groups together."""
        return self.boundaries[-1]

    @property
    def slices(self) -> list[slice]:
        """Coordinates of each group."""
        return [
            slice(start, stop) for start, stop in itertools.pairwise(self.boundaries)
        ]

    @property
    def claimed_ratio(self) -> float:
        """The configured noise multiplier divided by the proven one."""
        if self.noise == "per-group":
            return math.sqrt(self.count)
        return 1.0

    def thresholds(self, value: Any) -> tuple[float, ...]:
        """Return one threshold for each group.

        Args:
            value: one number for all groups, or a sequence with one for each.

        Raises:
            DpsumError: the length of the sequence is not the number of groups.
        """
        if isinstance(value, (int, float)):
            return (float(value),) * self.count
        if len(value) != self.count:
            raise DpsumError(
                f"clipping.threshold has {len(value)} values, but there are"
                f" {self.count} groups: give one for each, or one number for all"
            )
        return tuple(map(float, value))

    def noise_stds(
        self, thresholds: Sequence[float], noise_multiplier: float
    ) -> tuple[float, ...]:
        """Return the deviation of the noise in each group.

        Args:
            thresholds: C_g of each group.
            noise_multiplier: the proven noise multiplier, 1 / mu.
        """
        if self.noise == "joint":
            std = noise_multiplier * math.hypot(*thresholds)
            return (std,) * self.count
        shared = noise_multiplier * math.sqrt(self.count)
        return tuple(shared * threshold for threshold in thresholds)


def _shown(values: Sequence[Any]) -> str:
    text = ", ".join(map(str, values[:8]))
    if len(values) > 8:
        return f"[{text}, ...]"
    return f"[{text}]"


def joint_noise_multiplier(
    thresholds: Sequence[float], noise_stds: Sequence[float]
) -> float:
    """Return the flat noise multiplier with the same privacy as this noise by group.

    Args:
        thresholds: C_g of each group.
        noise_stds: deviation of the noise in each group; 0 if a group has no noise.

    Returns:
        1 / mu of the module's guarantee; 0 if a group has no noise.
    """
    if min(noise_stds) == 0:
        return 0.0
    ratios = (
        threshold / std for threshold, std in zip(thresholds, noise_stds, strict=True)
    )
    return 1 / math.hypot(*ratios)


def add_rows_by_group(
    adder: RowAdder,
    groups: CoordinateGroups,
    rows: Any,
    thresholds: Sequence[float],
    total: Any,
    norms: Any,
) -> None:
    """Add rows to a total, each clipped by group.

    Args:
        adder: adds the rows of one group; see `private_sum.add_rows`.
        groups: groups of the d coordinates.
        rows: [n, d]. A row that is not finite is left out of all groups.
        thresholds: C_g of each group.
        total: float64 [d], to which the clipped rows are added.
        norms: float64 [n, groups], set to the norms of the groups before clipping; NaN
            for a row that is left out.
    """
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        missing = np.asarray(np.nan, dtype=rows.dtype)
        rows = np.where(finite[:, None], rows, missing)
    for index, group in enumerate(groups.slices):
        part = np.ascontiguousarray(rows[:, group])
        lengths = np.empty(len(rows))
        adder(part, thresholds[index], total[group], lengths)
        norms[:, index] = lengths
    norms[~finite] = np.nan


class GroupedSum(PrivateSum):
    """A private sum that clips and noises each group of coordinates separately.

    Args:
        groups: groups of the coordinates.
        thresholds: C_g of each group, positive and finite.
        noise_multiplier: the proven noise multiplier, 1 / mu.
        adjacency: "zero-out" or "replace-one"; see `PrivateSum`.

    Attributes:
        threshold: sqrt(sum C_g^2), the largest norm of a clipped contribution.
        noise_std: deviation of the flat release with the same privacy:
            noise_multiplier times the sensitivity.
        noise_stds: deviation of the noise in each group.
    """

    def __init__(
        self,
        *,
        groups: CoordinateGroups,
        thresholds: Sequence[float],
        noise_multiplier: float,
        adjacency: str = "zero-out",
    ) -> None:
        for threshold in thresholds:
            check_range("the clipping threshold of a group", threshold)
        super().__init__(
            dimension=groups.dimension,
            threshold=math.hypot(*thresholds),
            noise_multiplier=noise_multiplier,
            adjacency=adjacency,
        )
        self.groups = groups
        self.thresholds = groups.thresholds(thresholds)
        self.noise_stds = tuple(
            self._reach * std
            for std in groups.noise_stds(self.thresholds, noise_multiplier)
        )

    def add(self, contributions: Any) -> Any:
        """Add contributions [n, d]; return the norms of their groups [n, groups]."""
        rows = rows_of(contributions, self.dimension)
        if rows.dtype.itemsize > 8:
            rows = double(rows)
        add = functools.partial(add_rows_by_group, add_rows, self.groups, rows)
        return self.add_by(add, len(rows))

    def new_norms(self, count: int) -> Any:
        """Return an empty array for the groups' norms, float64 [count, groups]."""
        return np.empty((count, self.groups.count))

    @property
    def _limit(self) -> Any:  # type: ignore[override]
        return self.thresholds

    @property
    def deviations(self) -> Any:
        """Deviation of the noise on each coordinate, float64 [d]."""
        sizes = np.diff(self.groups.boundaries)
        return np.repeat(self.noise_stds, sizes)

    def _noised(self, total: Any, standard: Any) -> Any:
        noise = self.deviations * standard
        return np.asarray(total + noise)
