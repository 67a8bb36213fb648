"""A reading of Adap DP-FL's adaptive threshold with which its published factors last. Not private."""

from __future__ import annotations

from typing import ClassVar, Literal

from dpfedbench.parts.clipping.rule import ByFactor
from dpsum import clipping


class MeanOfRawNorms(ByFactor, clipping.MeanOfRawNorms):
    """C is `factor` times the mean of the last lot's own norms, neither clipped nor noised.

    See `dpsum.clipping.MeanOfRawNorms`.
    """

    kind: Literal["mean-of-raw-norms"] = "mean-of-raw-norms"
    notice: ClassVar[str] = "the clipping threshold reads raw norms: not private"
