"""Adap DP-FL's eq. 6, read as the norm of the vector that was released."""

from __future__ import annotations

from typing import Literal

from dpfedbench.parts.clipping.rule import (
    LARGEST_THRESHOLD,
    SMALLEST_THRESHOLD,
    LotRule,
    Seen,
    State,
    within_range,
)
from dpfedbench.settings.part import setting


class ByFactor(LotRule):
    """C is `factor` times a mean norm (Adap DP-FL, eq. 6 to 8)."""

    threshold: float | None = setting(
        None,
        ge=SMALLEST_THRESHOLD,
        le=LARGEST_THRESHOLD,
        doc="C of the first round; null: the mean gradient norm of the initial model on random data",
    )
    factor: float = setting(
        1.0, ge=1e-6, le=1e6, doc="alpha, times the mean norm", paper="1 (MNIST), 0.01 (Fashion-MNIST)"
    )

    @property
    def finds_threshold(self) -> bool:
        return True


class NormOfRelease(ByFactor):
    """C is `factor` times the norm of the last released mean.

    Post-processing. With z C noise on each of d coordinates the norm is at least about z C sqrt(d) / L, so C grows or
    shrinks from round to round by at least factor z sqrt(d) / L, whatever the gradients are.
    """

    kind: Literal["norm-of-release"] = "norm-of-release"

    def observe(self, state: State, seen: Seen) -> None:
        state["threshold"] = within_range(self.factor * float(seen.released.double().norm()) / seen.denominator)
