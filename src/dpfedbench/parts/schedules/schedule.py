"""What every schedule is: the learning rate of each step."""

from __future__ import annotations

from typing import ClassVar

from dpfedbench.settings.part import Part


class Schedule(Part):
    """Base of the schedules."""

    place: ClassVar[str] = "dpfedbench.parts.schedules"

    def rate(self, first: float, step: int, steps: int) -> float:
        """The learning rate of step `step` (from 0) of `steps` planned, where the configured one is `first`."""
        raise NotImplementedError

    def check_rate(self, rate: float) -> None:
        """Refuse a configured rate that the schedule does not fit."""
