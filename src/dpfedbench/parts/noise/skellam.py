"""Skellam noise in shares, one of each client, under a sum that secure aggregation
shows (`dpsum.skellam_noise.Skellam`).
"""

import math
from typing import ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.noise.noise import Noise
from dpfedbench.parts.participation.participation import Participation
from dpfedbench.settings.part import setting
from dpfedbench.settings.run import Run
from dpsum import skellam_noise


class Skellam(Noise, skellam_noise.Skellam):
    """Discrete noise that clients add in shares, of deviation z over the sensitivity
    after rounding.
    """

    kind: Literal["skellam"] = "skellam"
    columns: ClassVar[tuple[str, ...]] = ("wrapped", "dropped")

    multiplier: float | None = setting(
        1.0,
        ge=1e-3,
        le=1e4,
        doc=(
            "z: deviation of the noise that is counted, over the sensitivity after"
            " rounding; null: the least that the budget allows"
        ),
    )
    bits: int = setting(
        16,
        ge=2,
        le=20,
        doc="of a coordinate: clients' messages are added modulo 2^bits",
        paper="16",
    )
    deviations: float = setting(
        4.0,
        ge=1,
        le=100,
        doc="of a coordinate of the sum, that half the modulus holds",
        paper="4",
    )
    dropped: float = setting(
        0.0,
        ge=0,
        lt=1,
        doc="share of each cohort that drops out, and its noise with it",
    )
    dropped_at_most: float = setting(
        0.0,
        ge=0,
        lt=1,
        doc=(
            "share of a cohort whose noise is not counted since it may drop out: the"
            " others add more"
        ),
    )
    colluding: float = setting(
        0.0,
        ge=0,
        lt=0.5,
        doc=(
            "share of a cohort whose noise is not counted since it may tell the server:"
            " below half"
        ),
    )

    def check(self, run: Run) -> None:
        plan = run.part(Participation)
        if not (plan.once and plan.known):
            raise BenchError(
                f"participation.kind is {plan.kind}, but the server of a secure sum"
                " knows who takes part, and the account covers one known round for"
                " each client: take one-pass"
            )
        if self.gone(plan.cohort) > math.floor(
            self.dropped_at_most * plan.cohort + 1e-9
        ):
            raise BenchError(
                f"noise.dropped is {self.dropped}, more than noise.dropped_at_most"
                f" ({self.dropped_at_most}): those who stay would add less noise than"
                " the account counts; raise noise.dropped_at_most"
            )
        if self.counted(plan.cohort) < 1:
            raise BenchError(
                "noise.dropped_at_most and noise.colluding leave no share of"
                f" {plan.cohort} clients' noise to count: lower them"
            )
