"""The threshold by a private quantile of clients or records (Andrew et al. 2019, Algorithm 1; AQC in DP-FedMeta)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.clipping.rule import CohortRule, Extra, LotRule, Seen, State, within_range
from dpfedbench.settings.part import setting

if TYPE_CHECKING:
    import numpy as np


INDICATOR = 0.5
"""A centred indicator's size, and so the sensitivity of their sum (zero-out)."""


class PrivateQuantile(CohortRule, LotRule):
    """C goes to the `percentile` of the norms by geometric steps: C <- C exp(-rate (b - gamma)).

    b is the noised share of the cohort (or lot) whose norm is at most C. The count is a release of its own over the
    same cohort, a private sum of centred indicators, and the ledger has it: C is post-processing of what was released.
    A unit moves the sum by C and the count by 1/2, so that both are one Gaussian of multiplier z with z^-2 = z_sum^-2 +
    (2 sigma_b)^-2; z_sum is raised until that is the configured z. Of records each client has a C of its own, which
    goes to the quantile of its own records; lots are small: let `count_noise` be well above `noise.multiplier` / 2.
    """

    kind: Literal["private-quantile"] = "private-quantile"
    percentile: float = setting(90.0, ge=0, le=100, doc="100 gamma: which quantile")
    never_rising: bool = setting(True, doc="take a new C only if it is not above the old one")
    quantile_rate: float = setting(
        0.2, gt=0, le=10, doc="eta_C of the geometric steps", paper="0.2 (Andrew et al. 2019)"
    )
    count_noise: float | None = setting(
        None,
        gt=0,
        le=1e9,
        doc="deviation of the noise on its count of norms below C; null: a twentieth of the cohort or lot",
    )

    def check(self, run: Any) -> None:
        super().check(run)
        multiplier = getattr(run.noise, "multiplier", None)
        deviation = self._deviation(run.participation.cohort)
        if multiplier is not None and not deviation / INDICATOR > multiplier:
            given = "null, so a twentieth of the cohort, " if self.count_noise is None else ""
            raise BenchError(
                f"clipping.count_noise is {given}{deviation:g}: private-quantile needs more than half of "
                f"noise.multiplier ({multiplier:g}), or the count alone costs all that may be spent"
            )

    def _deviation(self, cohort: float) -> float:
        return cohort / 20 if self.count_noise is None else self.count_noise

    def extra(self, state: State, *, noise_multiplier: float, cohort: float) -> Extra | None:
        return Extra(
            name="below-threshold-count", stream="count-noise", threshold=INDICATOR,
            noise_multiplier=self._deviation(cohort) / INDICATOR, counted=True, within=True,
        )  # fmt: skip

    def values(self, state: State, norms: np.ndarray) -> np.ndarray:
        """1/2 if a norm is at most C, else -1/2.

        A contribution that is zero puts in zero, so that zero-out of the one is zero-out of the other; one that is not
        finite stays so, and the private sum counts it as zero.
        """
        import numpy as np

        signs = np.where(norms <= state["threshold"], INDICATOR, -INDICATOR)
        signs[norms == 0] = 0.0
        signs[~np.isfinite(norms)] = np.nan
        return signs.astype(np.float32)[:, None]

    def observe(self, state: State, seen: Seen) -> None:
        """With noise the share b may lie outside 0 to 1."""
        assert seen.extra is not None
        share = 0.5 + seen.extra / seen.denominator
        exponent = -self.quantile_rate * (share - self.percentile / 100)
        if exponent > 0 and self.never_rising:
            return
        state["threshold"] = within_range(state["threshold"] * math.exp(min(max(exponent, -100.0), 100.0)))
