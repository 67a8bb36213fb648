"""Adap DP-FL's eq. 6, read as a scalar query: the noised mean of the clipped norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.clipping.norm_of_release import ByFactor
from dpfedbench.parts.clipping.rule import Extra, Seen, State, within_range

if TYPE_CHECKING:
    import numpy as np


class NoisedMeanNorm(ByFactor):
    """C is `factor` times the noised mean of the clipped norms (eq. 6 to 8).

    That mean is a release of its own over the same lot: each norm clipped to C, noise of standard deviation z C on
    their sum. The paper does not count it.
    """

    kind: Literal["noised-mean-norm"] = "noised-mean-norm"
    uncounted: ClassVar[bool] = True

    def check(self, run: Any) -> None:
        super().check(run)
        if getattr(run.noise, "multiplier", 1.0) is None:
            raise BenchError(
                "noise.multiplier is null, but noised-mean-norm is a release more a lot: give a multiplier"
            )

    def extra(self, state: State, *, noise_multiplier: float, cohort: float) -> Extra | None:
        return Extra(
            name="clipped-norm-sum", stream="norm-noise", threshold=state["threshold"],
            noise_multiplier=noise_multiplier, counted=False, within=False,
        )  # fmt: skip

    def values(self, state: State, norms: np.ndarray) -> np.ndarray:
        return norms.astype("float32")[:, None]

    def observe(self, state: State, seen: Seen) -> None:
        assert seen.extra is not None
        # Eq. 6 takes the absolute value (a norm of one coordinate).
        state["threshold"] = within_range(self.factor * abs(seen.extra) / seen.denominator)
