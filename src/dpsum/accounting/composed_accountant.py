"""Base of accountants that compose sampled rounds by their privacy loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from dploss.compositions import LEAST_GRID_DELTA, LEAST_USUAL_DELTA
from dploss.gaussian import Bracket, grouped, joint_of
from dpsum.accounting.accountant import Accountant, Events
from dpsum.sampling import Sampling


class ComposedAccountant(Accountant):
    """Base of accountants that compose sampled rounds. Long schedules are `grouped`.

    Attributes:
        ends_of: functions from (schedule, numbers of the sampler, delta) to the low and
            to the high end of epsilon.
    """

    ends_of: ClassVar[tuple[Callable[..., float], Callable[..., float]]]

    def drawn(self, sampling: Sampling) -> tuple[float, ...]:
        """Return the numbers of the sampler for `ends_of`."""
        return (float(sampling["rate"]),)

    def end(self, events: Events, delta: float, *, upper: bool, **more: str) -> float:
        """Return a proven end of epsilon, the upper or the lower one."""
        schedule = grouped(events.schedule, least=upper)
        drawn = self.drawn(events.sampling)
        return self.ends_of[upper](schedule, *drawn, delta, **more)

    def gaussian(self, events: Events) -> float | None:
        """Return the joint multiplier at rate 1: all releases are one Gaussian."""
        if events.rate == 1:
            return joint_of(events.schedule)
        return None

    def bracket(self, events: Events, delta: float) -> Bracket:
        if self.gaussian(events) is not None:
            return super().bracket(events, delta)
        low = self.end(events, delta, upper=False)
        return low, self.high(events, delta)

    def high(self, events: Events, delta: float) -> float:
        if self.gaussian(events) is not None:
            return super().bracket(events, delta)[1]
        return self.end(events, delta, upper=True)

    def width_reason(self, events: Events, delta: float) -> str:
        if grouped(events.schedule, least=True) != events.schedule:
            return (
                "rounds of similar noise are taken together, at their least noise for"
                " the high end and at their most for the low end"
            )
        if delta < LEAST_GRID_DELTA:
            return (
                f"no grid is made below delta = {LEAST_GRID_DELTA:g}, so that the low end"
                " is that of this delta, and the high end that of known cohorts"
            )
        if delta < LEAST_USUAL_DELTA:
            return (
                "the rounding of the Fourier transform is counted, and it is not small"
                f" beside a delta below {LEAST_USUAL_DELTA:g}"
            )
        return (
            "the step of the finest grid that fits into memory adds up over the rounds"
        )
