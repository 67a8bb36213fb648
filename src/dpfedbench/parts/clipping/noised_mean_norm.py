"""Adap DP-FL's eq. 6, read as a scalar query: the noised mean of the clipped norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.clipping.rule import ByFactor
from dpfedbench.parts.noise.noise import Noise
from dpsum import clipping

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run


class NoisedMeanNorm(ByFactor, clipping.NoisedMeanNorm):
    """C is `factor` times the noised mean of the clipped norms (eq. 6 to 8).

    See `dpsum.clipping.NoisedMeanNorm`.
    """

    kind: Literal["noised-mean-norm"] = "noised-mean-norm"

    def check(self, run: Run) -> None:
        super().check(run)
        if run.part(Noise).multiplier is None:
            raise BenchError(
                "noise.multiplier is null, but noised-mean-norm is a release more a lot: give a multiplier"
            )
