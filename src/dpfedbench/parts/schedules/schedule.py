"""Schedules: the learning rate of each step."""

import math
from typing import ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Part, setting


class Schedule(Part):
    """Base of the schedules."""

    package: ClassVar[str] = "dpfedbench.parts.schedules"

    def rate(self, first: float, step: int, steps: int) -> float:
        """The learning rate of step `step` (from 0) of `steps` planned, where the
        configured one is `first`.
        """
        raise NotImplementedError

    def check_rate(self, rate: float) -> None:
        """Refuse a configured rate that the schedule does not fit."""


class ConstantRate(Schedule):
    """The rate stays as it is."""

    kind: Literal["constant"] = "constant"

    def rate(self, first: float, step: int, steps: int) -> float:
        return first


class Cosine(Schedule):
    """The rate falls to `final_rate` over all planned rounds, on half a period of a
    cosine (DP-MAML, Section 6.2).
    """

    kind: Literal["cosine"] = "cosine"
    final_rate: float = setting(
        0.0,
        ge=0,
        le=1e6,
        doc="what the rate falls to",
        paper="0.001 (DP-MAML on Omniglot)",
    )

    def rate(self, first: float, step: int, steps: int) -> float:
        if not steps or self.final_rate == first:
            return first
        return (
            self.final_rate
            + (first - self.final_rate) * (1 + math.cos(math.pi * step / steps)) / 2
        )

    def check_rate(self, rate: float) -> None:
        if self.final_rate > rate:
            raise BenchError(
                f"server.schedule.final_rate is {self.final_rate:g}, above server.rate"
                f" ({rate:g}): it may only fall"
            )


class Linear(Schedule):
    """The rate falls to `final_rate` over all planned rounds on a straight line (Nichol
    et al. 2018, Section 6.1: the outer step size falls to 0).
    """

    kind: Literal["linear"] = "linear"
    final_rate: float = setting(0.0, ge=0, le=1e6, doc="what the rate falls to")

    def rate(self, first: float, step: int, steps: int) -> float:
        if not steps:
            return first
        return first + (self.final_rate - first) * (step / steps)

    def check_rate(self, rate: float) -> None:
        if self.final_rate > rate:
            raise BenchError(
                f"server.schedule.final_rate is {self.final_rate:g}, above server.rate"
                f" ({rate:g}): it may only fall"
            )


class Exponential(Schedule):
    """The rate of round t, from 0, is the first one times e^(-decay t) (Li et al. 2020,
    Appendix C).
    """

    kind: Literal["exponential"] = "exponential"
    decay: float = setting(
        0.0, ge=0, le=1e6, doc="of the rate's logarithm, a round", paper="0 to 0.1"
    )

    def rate(self, first: float, step: int, steps: int) -> float:
        return first * math.exp(-self.decay * step)
