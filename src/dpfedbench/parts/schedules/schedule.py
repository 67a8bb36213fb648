"""Schedules: the learning rate of each step."""

import math
from typing import ClassVar, Literal

from dpfedbench.config.part import Part, setting


class Schedule(Part):
    """Base of the schedules."""

    package: ClassVar[str] = "dpfedbench.parts.schedules"

    def rate(self, first: float, step: int, steps: int) -> float:
        """Return the learning rate of step `step` (from 0) of `steps` planned steps.

        Args:
            first: the configured rate.
            step: number of the step, from 0.
            steps: number of planned steps.
        """
        raise NotImplementedError


class ConstantRate(Schedule):
    """Constant rate."""

    kind: Literal["constant"] = "constant"

    def rate(self, first: float, step: int, steps: int) -> float:
        return first


class Cosine(Schedule):
    """Half a cosine to `final_rate` over all planned rounds (DP-MAML, Section 6.2)."""

    kind: Literal["cosine"] = "cosine"
    final_rate: float = setting(
        0.0,
        ge=0,
        le=1e6,
        doc="rate after the last round",
        paper="0.001 (DP-MAML on Omniglot)",
    )

    def rate(self, first: float, step: int, steps: int) -> float:
        if not steps or self.final_rate == first:
            return first
        return (
            self.final_rate
            + (first - self.final_rate) * (1 + math.cos(math.pi * step / steps)) / 2
        )


class Linear(Schedule):
    """Straight line to `final_rate` over all planned rounds (Nichol et al. 2018, Section
    6.1: to 0).
    """

    kind: Literal["linear"] = "linear"
    final_rate: float = setting(0.0, ge=0, le=1e6, doc="rate after the last round")

    def rate(self, first: float, step: int, steps: int) -> float:
        if not steps:
            return first
        return first + (self.final_rate - first) * (step / steps)


class Exponential(Schedule):
    """First rate times e^(-decay t) in round t, from 0 (Li et al. 2020, Appendix C)."""

    kind: Literal["exponential"] = "exponential"
    decay: float = setting(
        0.0, ge=0, le=1e6, doc="decay of the log rate in a round", paper="0 to 0.1"
    )

    def rate(self, first: float, step: int, steps: int) -> float:
        return first * math.exp(-self.decay * step)
