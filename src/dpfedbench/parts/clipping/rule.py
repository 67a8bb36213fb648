"""What every clipping rule is: settings, and how the threshold C moves from round to round.

A rule keeps its state in a plain dictionary, which a checkpoint saves as it is; "threshold" is C.
A rule sees releases. Raw norms exist for it only where it says `private = False`, and then no finite epsilon holds.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Part, setting

if TYPE_CHECKING:
    import numpy as np
    import torch

    from dpfedbench.settings.run import Run

SMALLEST_THRESHOLD = 1e-20
"""Some rules shrink C without end; below this the products z C would leave the range of single precision."""

LARGEST_THRESHOLD = 1e20

State = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extra:
    """A release of one coordinate that a rule makes beside the sum's own, over the same cohort or lot.

    Attributes:
        name: in the ledger.
        stream: purpose of its noise's random stream.
        threshold: what each value is clipped to, and so the sensitivity of their sum (zero-out).
        noise_multiplier: of its noise.
        counted: whether the method's paper counts it.
        within: whether it is paid out of the sum's own multiplier, which then rises (Andrew et al. 2019, Theorem 1).
    """

    name: str
    stream: str
    threshold: float
    noise_multiplier: float
    counted: bool
    within: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What a rule may see of a round: releases, public numbers and, where it is not private, raw norms.

    Attributes:
        released: the sum's release, float64 [d].
        extra: the release that the rule made itself; None where it makes none.
        denominator: what the sum is divided by.
        raw_norms: norms before clipping; None for a rule that is private.
    """

    released: torch.Tensor
    extra: float | None
    denominator: float
    raw_norms: list[float] | None


class ClippingRule(Part):
    """Base of the rules. `private`: reads only what was released, so that its threshold is post-processing.

    `reason` says why not, for the ledger and for people (`notice`). `makes_releases`: see `extra`.
    """

    place: ClassVar[str] = "dpfedbench.parts.clipping"
    private: ClassVar[bool] = True
    reason: ClassVar[str] = ""
    notice: ClassVar[str] = ""
    uncounted: ClassVar[bool] = False
    """Whether it makes a release that costs more than the budget's multiplier says (see `Extra.within`)."""
    reference: ClassVar[str] = ""
    """The method whose run on the same clients this rule's first threshold comes from; "" for none."""
    reference_file: ClassVar[str] = ""
    """The file of that run that it is found in."""

    threshold: float | None = setting(
        0.5, ge=SMALLEST_THRESHOLD, le=LARGEST_THRESHOLD, doc="C of the first round",
        paper="0.2 (DP-FedMeta's released code)",
    )  # fmt: skip

    def check(self, run: Any) -> None:
        if self.threshold is None and not self.finds_threshold:
            raise BenchError(f"clipping.threshold is null: the rule {self.kind} needs a first threshold")

    @property
    def moves(self) -> bool:
        """Whether the threshold moves after the first round."""
        return type(self).observe is not ClippingRule.observe

    @property
    def finds_threshold(self) -> bool:
        """Whether `threshold` null means that the first threshold is found elsewhere."""
        return False

    def first_threshold(self, path: Path, run: Run) -> float:
        """The first threshold, from the file of the run that is the `reference`."""
        raise NotImplementedError("of rules that name a reference")

    def begin(self, threshold: float) -> State:
        """The state before the first round.

        Raises:
            BenchError: a threshold that is not finite or not above 0.
        """
        if not 0 < threshold < math.inf:
            raise BenchError(f"clipping.threshold is {threshold}: it must be finite and above 0")
        return {"threshold": float(threshold)}

    def extra(self, state: State, *, noise_multiplier: float, cohort: float) -> Extra | None:
        """The release that this rule makes beside the sum's, of `values`; None for none.

        Args:
            state: as it is before the round.
            noise_multiplier: the sum's.
            cohort: expected number of clients, or of records in a lot.
        """
        return None

    def values(self, state: State, norms: np.ndarray) -> np.ndarray:
        """What each contribution puts into the extra release, float32 [n, 1], from its norm before clipping [n]."""
        raise NotImplementedError("of rules that make a release of their own")

    def observe(self, state: State, seen: Seen) -> None:
        """Move the threshold."""


class CohortRule(ClippingRule):
    """A rule for a sum over a cohort's clients."""


class LotRule(ClippingRule):
    """A rule for a sum over a lot of records."""


def within_range(threshold: float) -> float:
    """A threshold that a sum can be clipped to, whatever noise made of it."""
    return min(max(threshold, SMALLEST_THRESHOLD), LARGEST_THRESHOLD)
