"""Adap DP-FL's eq. 6, read as the norm of the vector that was released."""

from __future__ import annotations

from typing import Literal

from dpfedbench.parts.clipping.rule import ByFactor
from dpsum import clipping


class NormOfRelease(ByFactor, clipping.NormOfRelease):
    """C is `factor` times the norm of the last released mean.

    See `dpsum.clipping.NormOfRelease`.
    """

    kind: Literal["norm-of-release"] = "norm-of-release"
