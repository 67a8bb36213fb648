"""What a run may spend, and the privacy of single examples within a client's task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.clipping.constant import Constant
from dpfedbench.parts.noise.fixed import Fixed
from dpfedbench.parts.sum import Sum
from dpfedbench.settings.part import Section, setting

if TYPE_CHECKING:
    from dpfedbench.accounting.claims import Claims


class Budget(Section):
    """The limit on privacy loss; `delta` is used for reporting without a limit, too."""

    epsilon: float | None = setting(None, gt=0, doc="stop before this is exceeded; null: no limit", paper="1.52")
    delta: float = setting(1e-6, gt=0, lt=1, doc="delta at which epsilon is reported", paper="1e-6")
    profile: Literal["as_claimed", "holds"] = setting("as_claimed", doc="whose epsilon the limit is for")
    stop: bool = setting(True, doc="false: report only")

    def check(self, run: Any) -> None:
        if self.epsilon is not None:
            _check_profile("budget", self.profile, run)


class WithinTask(Section):
    """The private sums that a few-shot client takes over its own examples: record-level privacy within its task."""

    threshold: float = setting(0.2, gt=0, doc="C_0", paper="0.2")
    multiplier: float | None = setting(None, gt=0, doc="z_0; null: the least that keeps an example within epsilon")
    epsilon: float | None = setting(2.5, gt=0, doc="of one example; null: no such limit", paper="2.5 (DP-AGRLR)")
    delta: float = setting(1e-5, gt=0, lt=1, doc="delta_0", paper="not stated")
    profile: Literal["as_claimed", "holds"] = setting("holds", doc="whose epsilon that is")

    def check(self, run: Any) -> None:
        if self.multiplier is None and self.epsilon is None:
            raise BenchError("within_task.multiplier and within_task.epsilon are both null: give one")
        if self.multiplier is None:
            _check_profile("within_task", self.profile, run)

    def sum(self, name: str, *, observer: str) -> Sum:
        """One of these sums, by the name of what it releases."""
        return Sum(
            name=name, unit="record", observer=observer, stream=name, clipping=Constant(threshold=self.threshold),
            noise=Fixed(multiplier=self.multiplier), within_task=self,
        )  # fmt: skip

    def noise_multiplier(self, samplers: Mapping[str, Mapping[str, Any]], claims: Claims) -> float:
        """z_0 of a client's sums, by name: the configured one, or the least that keeps every example within epsilon.

        Raises:
            BenchError: an epsilon that no noise meets.
        """
        from dpfedbench.accounting.analyses import own_records

        return self.multiplier or own_records.calibrate(
            samplers, epsilon=self.epsilon or 0.0, delta=self.delta, profile=self.profile, claims=claims
        )


def _check_profile(section: str, profile: str, run: Any) -> None:
    """Refuse a limit on what the paper claims where it claims nothing."""
    if profile == "as_claimed" and not run.claims:
        raise BenchError(
            f"{section}.profile is as_claimed, but the paper of {run.method} claims no epsilon: set it to holds"
        )
