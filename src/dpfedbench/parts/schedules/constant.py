"""A learning rate that stays."""

from __future__ import annotations

from typing import Literal

from dpfedbench.parts.schedules.schedule import Schedule


class ConstantRate(Schedule):
    """The rate stays as it is."""

    kind: Literal["constant"] = "constant"

    def rate(self, first: float, step: int, steps: int) -> float:
        return first
