"""DP-FedMeta's rule as printed: a percentile of the norms of what was released."""

from __future__ import annotations

import math
from typing import Literal

from dpfedbench.parts.clipping.rule import SMALLEST_THRESHOLD, CohortRule, Seen, State
from dpfedbench.settings.part import setting


class Percentile(CohortRule):
    """C is a percentile of the values in a sliding window of rounds (DP-FedMeta, eq. 2), constant until it is full.

    The window moves by one round (the paper's step Delta W = 1).
    """

    percentile: float = setting(90.0, ge=0, le=100, doc="k: which percentile", paper="90")
    window: int = setting(3, ge=1, le=1_000_000, doc="W: rounds that are looked back upon")
    never_rising: bool = setting(True, doc="take a new C only if it is not above the old one (Section 3.1's smoothing)")

    def begin(self, threshold: float) -> State:
        return super().begin(threshold) | {"rounds": []}

    def move(self, state: State, values: list[float]) -> None:
        """Take the values of one more round into the window, and move C."""
        import numpy as np

        state["rounds"] = [*state["rounds"], values][-self.window :]
        if len(state["rounds"]) < self.window:
            return
        seen = [value for kept in state["rounds"] for value in kept if math.isfinite(value)]
        if not seen:
            return
        new = max(float(np.percentile(seen, self.percentile)), SMALLEST_THRESHOLD)
        if new <= state["threshold"] or not self.never_rising:
            state["threshold"] = new


class PercentileOfReleases(Percentile):
    """The percentile of the norms of what was released.

    `form` mean: of the released mean (Algorithm 2, line 8, divides by L). With z C noise on each of d coordinates that
    norm is at least about z C sqrt(d) / L, so C follows its own noise down, whatever the gradients are. `form` sum: of
    the released sum (eq. 7). That norm is far above any single contribution's, so with `never_rising` C never moves.
    """

    kind: Literal["percentile-of-releases"] = "percentile-of-releases"
    form: Literal["mean", "sum"] = setting("sum", doc="whether a release's norm is that of the mean or of the sum")

    def observe(self, state: State, seen: Seen) -> None:
        norm = float(seen.released.double().norm())
        self.move(state, [norm / seen.denominator if self.form == "mean" else norm])
