"""A sum that is being taken, and what of it left."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from dpsum.clipping import Seen
from dpsum.ledger import Release
from dpsum.private_sum import PrivateSum
from dpsum.sums import Sum


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """How contributions are added and norms taken: numpy's way, or that of whoever has them elsewhere.

    Attributes:
        add: given a `PrivateSum` (or the like) and contributions [n, d], adds them and returns their norms [n].
        norm: the L2 norm of a vector.
    """

    add: Callable[[Any, Any], np.ndarray] = lambda total, contributions: total.add(contributions)
    norm: Callable[[np.ndarray], float] = lambda values: float(np.linalg.norm(values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Released:
    """A release as it left.

    Attributes:
        holder: who took the sum, where several take one each.
        step: its local step.
        total: the sum that was taken; its threshold and noise multiplier are those of this release.
        mean: what left over the denominator, float64 [d]; None where nobody looks.
        extra, extra_mean: the same of what the clipping rule released beside it.
    """

    holder: int
    step: int
    total: PrivateSum
    mean: np.ndarray | None
    extra: PrivateSum | None = None
    extra_mean: np.ndarray | None = None


Observer = Callable[[Release, Sequence[tuple[Released, np.ndarray]]], None]
"""Sees what the ledger's observer sees: a line of the ledger, and for each release that it stands for what left."""


class Opener(Protocol):
    """What a total asks of the mechanism that opened it; see `Mechanism`."""

    sum: Sum
    dimension: int
    denominator: float
    arithmetic: Arithmetic
    observer: Observer | None
    on_release: Callable[[Total, np.ndarray], None] | None

    def state_of(self, holder: int) -> Any: ...
    def new_sum(self, state: Any, index: int = 0) -> Any: ...
    def extra_of(self, state: Any) -> Any: ...
    def new_extra_sum(self, extra: Any) -> PrivateSum: ...
    def noise_of(self, purpose: str, total: Total) -> Any: ...
    def note(self, index: int, released: Released) -> None: ...
    def noted_non_finite(self, count: int) -> None: ...


class Total:
    """A sum that is being taken; `Mechanism.release` ends it.

    Attributes:
        sum: takes the contributions: a `PrivateSum`, or what stands in its place.
    """

    def __init__(self, mechanism: Opener, index: int, step: int, holder: int) -> None:
        self._of, self.round, self.step, self.holder = mechanism, index, step, holder
        self._state = mechanism.state_of(holder)
        self._raw: list[float] = []
        self.sum: Any = mechanism.new_sum(self._state, index)
        self.extra, self._extra_sum = None, None
        if mechanism.sum.private and (extra := mechanism.extra_of(self._state)) is not None:
            self.extra = extra
            self._extra_sum = mechanism.new_extra_sum(extra)

    @property
    def dimension(self) -> int:
        """Coordinates d."""
        return self._of.dimension

    @property
    def norms(self) -> list[float]:
        """The contributions' own norms, of a sum that claims no privacy."""
        raw: list[float] = self.sum.norms
        return raw

    @property
    def as_rows(self) -> bool:
        """Whether contributions have to come as rows, since something is done to each before it is clipped."""
        transform = self._of.sum.transform
        return transform is not None and not transform.trivial

    def transformed(self, contributions: Any) -> Any:
        """Contributions [n, d] as they are clipped."""
        return self._of.sum.transform.rows(contributions) if self.as_rows else contributions

    @property
    def deviation(self) -> float:
        """Of the noise on each coordinate of the release; 0 where there is none."""
        noise = self._of.sum.noise
        if noise is None:
            return 0.0
        weights = noise.combines(self.round)
        return float(self.sum.noise_std) * (1.0 if weights is None else float(np.linalg.norm(weights)))

    def add(self, contributions: Any) -> np.ndarray:
        """Add contributions [n, d]; returns the norms [n] that are clipped, which are as private as they.

        Raises:
            DpsumError: they are no array of numbers, or not [n, d].
        """
        return self._seen(self._of.arithmetic.add(self.sum, self.transformed(contributions)))

    def add_by(
        self, add: Callable[[float, np.ndarray, np.ndarray], None], count: int, *, transformed: bool = False
    ) -> np.ndarray:
        """Add contributions that a compiled loop makes; see `PrivateSum.add_by`.

        Args:
            add, count: as there.
            transformed: whether the loop makes of them what `transformed` does.
        """
        if self.as_rows and not transformed:
            raise RuntimeError("contributions to this sum are transformed before they are clipped: add them as rows")
        return self._seen(self.sum.add_by(add, count))

    def _seen(self, norms: np.ndarray) -> np.ndarray:
        rule = self._of.sum.clipping
        if rule is not None and not rule.private:
            self._raw += norms.tolist()
        if rule is not None and self._extra_sum is not None:
            self._of.arithmetic.add(self._extra_sum, rule.values(self._state, norms))
        return norms

    def release(self) -> np.ndarray:
        """As `Mechanism.release`, without the ledger's line: who takes many sums a round writes them at its end."""
        own, rule = self._of, self._of.sum.clipping
        released: np.ndarray = self.sum.release(own.noise_of(own.sum.stream, self))
        own.noted_non_finite(self.sum.non_finite)
        if rule is None:
            return released
        extra = None
        if self.extra is not None and self._extra_sum is not None:
            drawn = own.noise_of(self.extra.stream, self)
            assert drawn is not None
            extra = self._extra_sum.release(drawn)
        seen = Seen(
            released=released,
            norm=own.arithmetic.norm,
            extra=None if extra is None else float(extra[0]),
            denominator=own.denominator,
            raw_norms=None if rule.private else self._raw,
        )
        rule.observe(self._state, seen)
        watched = own.observer is not None
        own.note(
            self.round, Released(
                holder=self.holder, step=self.step, total=self.sum,
                mean=released / own.denominator if watched else None, extra=self._extra_sum,
                extra_mean=extra / own.denominator if extra is not None and watched else None,
            )
        )  # fmt: skip
        if own.on_release is not None:
            own.on_release(self, released)
        return released
