"""A sum that is being taken, and what of it left."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpsum.clipping import Extra, State
from dpsum.ledger import Release
from dpsum.private_sum import PrivateSum
from dpsum.sums import SumSpec


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """Functions that add contributions and take norms: numpy's, or those of another
    array library.

    `add` adds contributions [n, d] to a `PrivateSum` (or the like) and returns their
    norms [n]; `norm` is the L2 norm of a vector.
    """

    add: Callable[[Any, Any], np.ndarray] = lambda total, contributions: total.add(
        contributions
    )
    norm: Callable[[np.ndarray], float] = lambda values: float(np.linalg.norm(values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Released:
    """A release as it left: of a holder, where several take one each, and its local
    step.

    Attributes:
        total: the sum that was taken; its threshold and noise multiplier are those of
            this release.
        mean: what left over the denominator, float64 [d]; None without an observer.
        extra, extra_mean: the same of what the clipping rule released beside it.
    """

    holder: int
    step: int
    total: PrivateSum
    mean: np.ndarray | None
    extra: PrivateSum | None = None
    extra_mean: np.ndarray | None = None


Observer = Callable[[Release, Sequence[tuple[Released, np.ndarray]]], None]
"""Sees what the ledger's observer sees: a line of the ledger, and for each release that
it stands for what left.
"""


@dataclasses.dataclass(eq=False, kw_only=True)
class Accumulator:
    """A sum that is being taken; `Mechanism.release` ends it.

    Attributes:
        described: whose contributions it adds up, and how they are clipped.
        arithmetic: how they are added.
        rule: how the threshold moves, of a sum that is clipped by groups in each of
            them; None: the sum is not clipped.
        round, step, holder: which of a mechanism's sums it is.
        sum: takes the contributions: a `PrivateSum`, or what stands in its place.
        state: of the clipping rule.
        extra, extra_sum: what the rule releases beside the sum, and what takes that;
            None where nothing is.
        raw: the contributions' own norms, for a rule that is not private; else empty.
    """

    described: SumSpec
    arithmetic: Arithmetic
    rule: Any
    dimension: int
    round: int
    step: int
    holder: int
    sum: Any
    state: State
    extra: Extra | None = None
    extra_sum: PrivateSum | None = None
    raw: list[Any] = dataclasses.field(default_factory=list)

    @property
    def norms(self) -> list[float]:
        """The contributions' own norms, of a sum that claims no privacy."""
        return list(self.sum.norms)

    @property
    def as_rows(self) -> bool:
        """Whether contributions have to come as rows, since they are clipped by groups,
        or something is done to each before it is clipped.
        """
        has_groups = getattr(self.sum, "groups", None) is not None
        return self.transforms or has_groups

    @property
    def transforms(self) -> bool:
        """Whether something is done to each contribution before it is clipped."""
        transform = self.described.transform
        return transform is not None and not transform.trivial

    def transformed(self, contributions: Any) -> Any:
        """Contributions [n, d] as they are clipped."""
        if self.transforms:
            return self.described.transform.rows(contributions)
        return contributions

    @property
    def deviation(self) -> Any:
        """The deviation of the noise on each coordinate of the release, a number or an
        array [d] of a sum that is clipped by groups; 0 where there is none.
        """
        noise = self.described.noise
        if noise is None:
            return 0.0
        weights = noise.combines(self.round)
        if self.sum.groups is not None:
            return self.sum.deviations
        return float(self.sum.noise_std) * (
            1.0 if weights is None else float(np.linalg.norm(weights))
        )

    def add(self, contributions: Any) -> np.ndarray:
        """Add contributions [n, d]; returns the norms [n] that are clipped, which are
        as private as they.

        DpsumError where they are no array of numbers, or not [n, d].
        """
        return self._seen(
            self.arithmetic.add(self.sum, self.transformed(contributions))
        )

    def add_by(
        self,
        add: Callable[[float, np.ndarray, np.ndarray], None],
        count: int,
        *,
        transformed: bool = False,
    ) -> np.ndarray:
        """Add contributions that a compiled loop makes, and `transformed` where it says
        so; see `PrivateSum.add_by`.
        """
        if self.as_rows and not transformed:
            raise RuntimeError(
                "contributions to this sum are transformed before they are clipped, or"
                " clipped by groups: add them as rows"
            )
        return self._seen(self.sum.add_by(add, count))

    def _seen(self, norms: np.ndarray) -> np.ndarray:
        rule = self.rule
        if rule is not None and not rule.private:
            self.raw += norms.tolist()
        if rule is not None and self.extra_sum is not None:
            # A copy: a rule must not keep raw norms for its next threshold.
            state = copy.deepcopy(self.state)
            values = rule.values(state, norms)
            self.arithmetic.add(self.extra_sum, values)
        return norms
