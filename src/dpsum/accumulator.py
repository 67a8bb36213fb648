"""The sum of one round: while it is taken (`Accumulator`), and when it is finished."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpsum.clipping import Extra, State
from dpsum.ledger import Release
from dpsum.private_sum import PlainSum, PrivateSum
from dpsum.sums import SumSpec


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """Functions that add contributions and compute norms, for one array library.

    Attributes:
        add: adds contributions [n, d] to a `PrivateSum` or a `PlainSum`, and returns
            their norms [n].
        norm: returns the L2 norm of a vector [d].
        plain_sum: returns the object that adds up contributions [d] without clipping
            and noise, given d; a `PlainSum` or a class like it.
    """

    add: Callable[[Any, Any], np.ndarray] = lambda total, contributions: total.add(
        contributions
    )
    norm: Callable[[np.ndarray], float] = lambda values: float(np.linalg.norm(values))
    plain_sum: Callable[[int], Any] = lambda dimension: PlainSum(dimension=dimension)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedSum:
    """A finished sum of a round, whose line is not in the ledger yet.

    Attributes:
        holder: the client that took the sum, where each client takes one; else 0.
        step: the holder's local step.
        sum: the sum. It has the threshold and the noise multiplier of this release.
        mean: the released sum divided by the denominator, float64 [d]; None without an
            observer.
        extra_sum: the sum behind the clipping rule's own release; None without one.
        extra_mean: the rule's own release divided by the denominator.
    """

    holder: int
    step: int
    sum: PrivateSum
    mean: np.ndarray | None
    extra_sum: PrivateSum | None = None
    extra_mean: np.ndarray | None = None


Outcome = tuple[FinishedSum, np.ndarray]
"""A finished sum and its released mean, float64 [d]; of the sum itself, or of the
clipping rule's own release.
"""

Observer = Callable[[Release, Sequence[Outcome]], None]
"""Callback that sees what the ledger's observer sees: one line of the ledger, and the
outcome of each sum that the line stands for.
"""


@dataclasses.dataclass(eq=False, kw_only=True)
class Accumulator:
    """The sum of one round, until `Mechanism.release` closes it.

    Attributes:
        spec: specification of the sum: units, clipping and noise.
        arithmetic: functions that add contributions.
        rule: the clipping rule (a `RuleByGroup` where groups of coordinates are
            clipped); None where the sum is not clipped.
        dimension: number of coordinates d.
        round, step, holder: position of this sum among those of its mechanism.
        sum: the object that adds up the contributions, for instance a `PrivateSum`.
        state: state of the clipping rule before this round.
        extra: specification of the rule's own release; None without one.
        extra_sum: the sum behind the rule's own release; None without one.
        raw_norms: norms before clipping, for a rule that is not private; else empty.
    """

    spec: SumSpec
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
    raw_norms: list[Any] = dataclasses.field(default_factory=list)

    @property
    def norms(self) -> list[float]:
        """Norms of the contributions to a `PlainSum`, which claims no privacy."""
        return list(self.sum.norms)

    @property
    def as_rows(self) -> bool:
        """Whether contributions must be added as rows.

        That is so where they are clipped by groups or transformed before clipping.
        """
        has_groups = getattr(self.sum, "groups", None) is not None
        return self.transforms or has_groups

    @property
    def transforms(self) -> bool:
        """Whether each contribution is transformed before it is clipped."""
        transform = self.spec.transform
        return transform is not None and not transform.trivial

    def transformed(self, contributions: Any) -> Any:
        """Return the contributions [n, d] after the transform, ready to be clipped."""
        transform = self.spec.transform
        if transform is None or transform.trivial:
            return contributions
        return transform.rows(contributions)

    @property
    def deviation(self) -> Any:
        """Standard deviation of the noise on each coordinate of the release.

        A number; an array [d] where groups of coordinates are clipped; 0 without noise.
        """
        noise = self.spec.noise
        if noise is None:
            return 0.0
        weights = noise.combines(self.round)
        if self.sum.groups is not None:
            return self.sum.deviations
        noise_std = float(self.sum.noise_std)
        if weights is None:
            return noise_std
        return noise_std * float(np.linalg.norm(weights))

    def add(self, contributions: Any) -> np.ndarray:
        """Add contributions [n, d].

        Returns:
            Norms before clipping, [n]. They are as sensitive as the contributions.

        Raises:
            DpsumError: the contributions are not an array of numbers of shape [n, d].
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
        """Add contributions that a compiled loop computes; see `PrivateSum.add_by`.

        Args:
            add: adds the clipped contributions to a total and writes their norms.
            count: number of contributions.
            transformed: whether `add` transforms each contribution before clipping.
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
            self.raw_norms += norms.tolist()
        if rule is not None and self.extra_sum is not None:
            # A copy: a rule must not keep raw norms for its next threshold.
            state = copy.deepcopy(self.state)
            values = rule.values(state, norms)
            self.arithmetic.add(self.extra_sum, values)
        return norms
