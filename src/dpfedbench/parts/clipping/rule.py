"""What every clipping rule of a configuration is: settings, on top of how `dpsum.clipping` moves the threshold C."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Part, setting
from dpsum import clipping
from dpsum.clipping import LARGEST_THRESHOLD, SMALLEST_THRESHOLD, Extra, Seen, State, within_range

__all__ = ["CohortRule", "Extra", "LotRule", "Seen", "State", "within_range"]  # what a rule of one's own imports

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run


class ClippingRule(Part, clipping.ClippingRule):
    """Base of the rules. `private`, `reason`, `begin`, `extra`, `values`, `observe`: see `dpsum.clipping`.

    `notice` says for people why a rule is not private.
    """

    place: ClassVar[str] = "dpfedbench.parts.clipping"
    notice: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    """The method whose run on the same clients this rule's first threshold comes from; "" for none."""
    reference_file: ClassVar[str] = ""
    """The file of that run that it is found in."""

    threshold: float | None = setting(
        0.5, ge=SMALLEST_THRESHOLD, le=LARGEST_THRESHOLD, doc="C of the first round",
        paper="0.2 (DP-FedMeta's released code)",
    )  # fmt: skip

    def check(self, run: Run) -> None:
        if self.threshold is None and not self.finds_threshold:
            raise BenchError(f"clipping.threshold is null: the rule {self.kind} needs a first threshold")

    @property
    def finds_threshold(self) -> bool:
        """Whether `threshold` null means that the first threshold is found elsewhere."""
        return False

    def first_threshold(self, path: Path, run: Run) -> float:
        """The first threshold, from the file of the run that is the `reference`."""
        raise NotImplementedError("of rules that name a reference")


class CohortRule(ClippingRule):
    """A rule for a sum over a cohort's clients."""


class LotRule(ClippingRule):
    """A rule for a sum over a lot of records."""


class ByFactor(LotRule):
    """Settings of rules whose C is `factor` times a mean norm (Adap DP-FL, eq. 6 to 8)."""

    threshold: float | None = setting(
        None,
        ge=SMALLEST_THRESHOLD,
        le=LARGEST_THRESHOLD,
        doc="C of the first round; null: the mean gradient norm of the initial model on random data",
    )
    factor: float = setting(
        1.0, ge=1e-6, le=1e6, doc="alpha, times the mean norm", paper="1 (MNIST), 0.01 (Fashion-MNIST)"
    )

    @property
    def finds_threshold(self) -> bool:
        return True


class Percentile(CohortRule):
    """Settings of rules whose C is a percentile over a sliding window of rounds (DP-FedMeta, eq. 2)."""

    percentile: float = setting(90.0, ge=0, le=100, doc="k: which percentile", paper="90")
    window: int = setting(3, ge=1, le=1_000_000, doc="W: rounds that are looked back upon")
    never_rising: bool = setting(True, doc="take a new C only if it is not above the old one (Section 3.1's smoothing)")
