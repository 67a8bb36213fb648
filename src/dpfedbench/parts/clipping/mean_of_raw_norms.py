"""A reading of Adap DP-FL's adaptive threshold with which its published factors last. Not private."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from dpfedbench.parts.clipping.norm_of_release import ByFactor
from dpfedbench.parts.clipping.rule import Seen, State, within_range


class MeanOfRawNorms(ByFactor):
    """C is `factor` times the mean of the last lot's own norms, neither clipped nor noised.

    No reading of Adap DP-FL's eq. 6, but the one with which its published factors give a threshold that lasts. An
    empty lot leaves C as it is.
    """

    kind: Literal["mean-of-raw-norms"] = "mean-of-raw-norms"
    private: ClassVar[bool] = False
    reason: ClassVar[str] = "MeanOfRawNorms sets the threshold from raw norms"
    notice: ClassVar[str] = "the clipping threshold reads raw norms: not private"

    def observe(self, state: State, seen: Seen) -> None:
        assert seen.raw_norms is not None
        finite = [norm for norm in seen.raw_norms if math.isfinite(norm)]
        if finite:
            state["threshold"] = within_range(self.factor * math.fsum(finite) / len(finite))
