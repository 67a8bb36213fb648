"""Adap DP-FL's adaptive threshold (eq. 6 to 8), C = alpha times a mean norm, in three
readings.
"""

from typing import ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.clipping.rule import LotRule
from dpfedbench.parts.noise.noise import Noise
from dpfedbench.settings.part import setting
from dpfedbench.settings.run import Run
from dpsum import clipping
from dpsum.clipping import LARGEST_THRESHOLD, SMALLEST_THRESHOLD


class ByFactor(LotRule):
    """Settings of rules whose C is `factor` times a mean norm."""

    finds_threshold: ClassVar[bool] = True

    threshold: float | None = setting(
        None,
        ge=SMALLEST_THRESHOLD,
        le=LARGEST_THRESHOLD,
        doc=(
            "C of the first round; null: the mean gradient norm of the initial model on"
            " random data"
        ),
    )
    factor: float = setting(
        1.0,
        ge=1e-6,
        le=1e6,
        doc="alpha, times the mean norm",
        paper="1 (MNIST), 0.01 (Fashion-MNIST)",
    )


class NormOfRelease(ByFactor, clipping.NormOfRelease):
    """C is `factor` times the norm of the last released mean: eq. 6, read as the norm
    of the released vector.
    """

    kind: Literal["norm-of-release"] = "norm-of-release"


class NoisedMeanNorm(ByFactor, clipping.NoisedMeanNorm):
    """C is `factor` times the noised mean of the clipped norms: eq. 6, read as a scalar
    query, a release of its own.
    """

    kind: Literal["noised-mean-norm"] = "noised-mean-norm"

    def check(self, run: Run) -> None:
        super().check(run)
        if run.part(Noise).multiplier is None:
            raise BenchError(
                "noise.multiplier is null, but noised-mean-norm is a release more a"
                " lot: give a multiplier"
            )


class MeanOfRawNorms(ByFactor, clipping.MeanOfRawNorms):
    """C is `factor` times the mean of the last lot's own norms, neither clipped nor
    noised. Not private.

    With this reading the paper's published factors keep the threshold up.
    """

    kind: Literal["mean-of-raw-norms"] = "mean-of-raw-norms"
    notice: ClassVar[str] = "the clipping threshold reads raw norms: not private"
