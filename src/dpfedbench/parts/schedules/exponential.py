"""A learning rate that falls by the same share in each round (Li et al. 2020, Appendix C: the meta rate's decay)."""

from __future__ import annotations

import math
from typing import Literal

from dpfedbench.parts.schedules.schedule import Schedule
from dpfedbench.settings.part import setting


class Exponential(Schedule):
    """The rate of round t, from 0, is the first one times e^(-decay t)."""

    kind: Literal["exponential"] = "exponential"
    decay: float = setting(0.0, ge=0, le=1e6, doc="of the rate's logarithm, a round", paper="0 to 0.1")

    def rate(self, first: float, step: int, steps: int) -> float:
        return first * math.exp(-self.decay * step)
