"""Skellam noise in shares, one of each client, under a sum that secure aggregation shows (`privacy.secure_sum`).

Skellam variables add up to Skellam variables, so that the noise of any set of shares is known exactly, also where
clients drop out; a sum of discrete Gaussians is none, and its account has a divergence term of its own (Kairouz et al.
2021, Theorem 1). Agarwal, Kairouz and Liu 2021, The Skellam Mechanism for Differentially Private Federated Learning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.noise.noise import Noise
from dpfedbench.settings.part import setting

if TYPE_CHECKING:
    from dpsum.lattice import Lattice
    from dpsum.private_sum import PrivateSum

MECHANISM = "skellam"


class Skellam(Noise):
    """Discrete noise that clients add in shares, of deviation z over the sensitivity after rounding."""

    kind: Literal["skellam"] = "skellam"
    mechanism: ClassVar[str] = MECHANISM
    columns: ClassVar[tuple[str, ...]] = ("wrapped", "dropped")
    by_dimension: ClassVar[bool] = True
    one_by_one: ClassVar[bool] = True

    multiplier: float | None = setting(
        1.0,
        ge=1e-3,
        le=1e4,
        doc="z: deviation of the noise that is counted, over the sensitivity after rounding; null: the least that the "
        "budget allows",
    )
    bits: int = setting(16, ge=2, le=20, doc="of a coordinate: clients' messages are added modulo 2^bits", paper="16")
    deviations: float = setting(
        4.0, ge=1, le=100, doc="of a coordinate of the sum, that half the modulus holds", paper="4"
    )
    dropped: float = setting(0.0, ge=0, lt=1, doc="share of each cohort that drops out, and its noise with it")
    dropped_at_most: float = setting(
        0.0, ge=0, lt=1, doc="share of a cohort whose noise is not counted since it may drop out: the others add more"
    )
    colluding: float = setting(
        0.0, ge=0, lt=0.5, doc="share of a cohort whose noise is not counted since it may tell the server: below half"
    )

    def check(self, run: Any) -> None:
        plan = run.participation
        if not (plan.once and plan.known):
            raise BenchError(
                f"participation.kind is {plan.kind}, but the server of a secure sum knows who takes part, and the "
                "account is of one known round a client: take one-pass"
            )
        if self._gone(plan.cohort) > math.floor(self.dropped_at_most * plan.cohort + 1e-9):
            raise BenchError(
                f"noise.dropped is {self.dropped}, more than noise.dropped_at_most ({self.dropped_at_most}): those who "
                "stay would add less noise than the account counts; raise noise.dropped_at_most"
            )
        if self._counted(plan.cohort) < 1:
            raise BenchError(
                f"noise.dropped_at_most and noise.colluding leave no share of {plan.cohort} clients' noise to count: "
                "lower them"
            )

    def _gone(self, cohort: int) -> int:
        return math.ceil(self.dropped * cohort - 1e-9)

    def _colluders(self, cohort: int) -> int:
        return math.ceil(self.colluding * cohort - 1e-9)

    def _counted(self, cohort: int) -> int:
        return cohort - math.floor(self.dropped_at_most * cohort + 1e-9) - self._colluders(cohort)

    def lattice(self, *, dimension: int, threshold: float, noise_multiplier: float, cohort: int) -> Lattice:
        """The whole numbers of a round.

        Raises:
            BenchError: the modulus is too small.
        """
        from dpsum.lattice import Lattice

        return Lattice.of(
            dimension=dimension, threshold=threshold, noise_multiplier=noise_multiplier, bits=self.bits,
            deviations=self.deviations, clients=cohort, counted=self._counted(cohort),
        )  # fmt: skip

    def private_sum(
        self, ordinary: type[PrivateSum], *, streams: Callable[..., Any], cohort: float, **values: Any
    ) -> PrivateSum:
        from dpsum.secure_sum import SecureSum

        size, _ = int(cohort), values.pop("adjacency")
        lattice = self.lattice(cohort=size, **values)
        return SecureSum(
            **values, lattice=lattice, dropped=self._gone(size), streams=streams, colluding=self._colluders(size)
        )

    def secure(self, **values: Any) -> dict[str, Any]:
        from dpsum.lattice import said

        given = {name: values[name] for name in ("threshold", "noise_multiplier")}
        return said(self.lattice(**values), **given)
