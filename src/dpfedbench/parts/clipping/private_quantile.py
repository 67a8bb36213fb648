"""The threshold by a private quantile of clients or records (Andrew et al. 2019,
Algorithm 1; AQC in DP-FedMeta).
"""

from typing import Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.clipping.rule import CohortRule, LotRule
from dpfedbench.parts.participation.participation import Participation
from dpfedbench.settings.part import setting
from dpfedbench.settings.run import Run
from dpsum import clipping
from dpsum.noise import Noise


class PrivateQuantile(CohortRule, LotRule, clipping.PrivateQuantile):
    """C goes to the `percentile` of the norms by geometric steps: C <- C exp(-rate (b -
    gamma)).

    See `dpsum.clipping.PrivateQuantile`. Of records each client has a C of its own,
    which goes to the quantile of its own records; lots are small: let `count_noise` be
    well above `noise.multiplier` / 2.
    """

    kind: Literal["private-quantile"] = "private-quantile"
    percentile: float = setting(90.0, ge=0, le=100, doc="100 gamma: which quantile")
    never_rising: bool = setting(
        True, doc="take a new C only if it is not above the old one"
    )
    quantile_rate: float = setting(
        0.2,
        gt=0,
        le=10,
        doc="eta_C of the geometric steps",
        paper="0.2 (Andrew et al. 2019)",
    )
    count_noise: float | None = setting(
        None,
        gt=0,
        le=1e9,
        doc=(
            "deviation of the noise on its count of norms below C; null: a twentieth of"
            " the cohort or lot"
        ),
    )

    def check(self, run: Run) -> None:
        super().check(run)
        multiplier = run.part(Noise).multiplier
        deviation = self.deviation(run.part(Participation).cohort)
        if multiplier is not None and not deviation / clipping.INDICATOR > multiplier:
            given = (
                "null, so a twentieth of the cohort, "
                if self.count_noise is None
                else ""
            )
            raise BenchError(
                f"clipping.count_noise is {given}{deviation:g}: private-quantile needs"
                f" more than half of noise.multiplier ({multiplier:g}), or the count"
                " alone costs all that may be spent"
            )
