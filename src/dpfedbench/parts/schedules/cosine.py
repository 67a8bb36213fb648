"""A learning rate that falls on half a period of a cosine (DP-MAML, Section 6.2)."""

from __future__ import annotations

import math
from typing import Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.schedules.schedule import Schedule
from dpfedbench.settings.part import setting


class Cosine(Schedule):
    """The rate falls to `final_rate` over all planned rounds."""

    kind: Literal["cosine"] = "cosine"
    final_rate: float = setting(0.0, ge=0, le=1e6, doc="what the rate falls to", paper="0.001 (DP-MAML on Omniglot)")

    def rate(self, first: float, step: int, steps: int) -> float:
        if not steps or self.final_rate == first:
            return first
        return self.final_rate + (first - self.final_rate) * (1 + math.cos(math.pi * step / steps)) / 2

    def check_rate(self, rate: float) -> None:
        if self.final_rate > rate:
            raise BenchError(
                f"server.schedule.final_rate is {self.final_rate:g}, above server.rate ({rate:g}): it may only fall"
            )
