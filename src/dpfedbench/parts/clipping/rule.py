"""Base classes of clipping rules: their settings, on top of how `dpsum.clipping` moves
the threshold C.
"""

from pathlib import Path
from typing import ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Part, setting
from dpfedbench.settings.run import Run
from dpsum import clipping
from dpsum.clipping import (
    LARGEST_THRESHOLD,
    SMALLEST_THRESHOLD,
    Extra,
    Seen,
    State,
    within_range,
)

__all__ = [
    "CohortRule",
    "Extra",
    "LotRule",
    "Seen",
    "State",
    "within_range",
]  # what a rule of one's own imports


class ClippingRule(Part, clipping.ClippingRule):
    """Base of the rules. `private`, `reason`, `begin`, `extra`, `values`, `observe`:
    see `dpsum.clipping`.

    `notice` says for people why a rule is not private.
    """

    place: ClassVar[str] = "dpfedbench.parts.clipping"
    notice: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    """The method whose run on the same clients this rule's first threshold comes from;
    "" for none.
    """
    reference_file: ClassVar[str] = ""
    """The file of that run that has it."""
    finds_threshold: ClassVar[bool] = False
    """Whether `threshold` null means that the first threshold comes from elsewhere."""

    threshold: float | None = setting(
        0.5,
        ge=SMALLEST_THRESHOLD,
        le=LARGEST_THRESHOLD,
        doc="C of the first round",
        paper="0.2 (DP-FedMeta's released code)",
    )

    groups: Literal["all", "layers", "tensors"] = setting(
        "all",
        doc=(
            "what is clipped to a threshold of its own: all coordinates together, each"
            " layer, or each tensor; `threshold` is then that of each group"
        ),
        paper="layers (DP-MAML, 5.2.1); tensors (DP-FedMeta's released code)",
    )
    noise_by_group: Literal["joint", "per-group", "equal-shares"] = setting(
        "joint",
        doc=(
            "how `noise.multiplier` z is read for m groups of thresholds C_g: deviation"
            " z sqrt(sum C_g^2), z C_g (which protects like z / sqrt(m)), or z sqrt(m)"
            " C_g"
        ),
        paper="per-group",
    )

    def check(self, run: Run) -> None:
        if self.groups == "all" and self.noise_by_group != "joint":
            raise BenchError(
                f"clipping.noise_by_group is {self.noise_by_group}, but clipping.groups is"
                " all, so there is one group: set groups to layers or tensors"
            )
        if self.groups != "all" and self.threshold is None:
            raise BenchError(
                f"clipping.groups is {self.groups}, but the rule {self.kind} finds one"
                " threshold of all coordinates: give clipping.threshold, of each group"
            )
        if self.threshold is None and not self.finds_threshold:
            raise BenchError(
                f"clipping.threshold is null: the rule {self.kind} needs a first"
                " threshold"
            )

    def first_threshold(self, path: Path, run: Run) -> float:
        """The first threshold, from the file of the run that is the `reference`."""
        raise NotImplementedError("of rules that name a reference")


class CohortRule(ClippingRule):
    """A rule for a sum over a cohort's clients."""


class LotRule(ClippingRule):
    """A rule for a sum over a lot of records."""


class Constant(CohortRule, LotRule, clipping.Constant):
    """C stays as it is."""

    kind: Literal["constant"] = "constant"
