"""Skellam noise that clients add in shares under secure aggregation."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

from dpsum.noise import Noise
from dpsum.parameters import parameter
from dpsum.private_sum import PrivateSum
from dpsum.secure import Lattice, SecureSum


@dataclasses.dataclass(frozen=True)
class Skellam(Noise):
    """Skellam noise that clients add in shares under secure aggregation.

    Its deviation is z times the sensitivity after rounding. A sum of Skellam variables
    is a Skellam variable, so that the noise of any set of shares is known exactly, also
    where clients drop out. A sum of discrete Gaussians is not a discrete Gaussian, and
    its account needs a further divergence term (Kairouz et al. 2021).

    Agarwal, Kairouz and Liu 2021, The Skellam Mechanism for Differentially Private
    Federated Learning.
    """

    kind: ClassVar[str] = "skellam"
    mechanism: ClassVar[str] = "skellam"
    by_dimension: ClassVar[bool] = True
    one_by_one: ClassVar[bool] = True
    public_columns: ClassVar[tuple[str, ...]] = ("wrapped", "dropped")

    multiplier: float | None = parameter(
        1.0,
        ge=1e-3,
        le=1e4,
        doc=(
            "z: deviation of the counted noise over the sensitivity after rounding;"
            " null: the least that the budget allows"
        ),
    )
    bits: int = parameter(
        16,
        ge=2,
        le=20,
        doc="b: bits of a coordinate; clients' messages are added modulo 2^b",
        paper="16",
    )
    deviations: float = parameter(
        4.0,
        ge=1,
        le=100,
        doc="standard deviations of a sum's coordinate that half the modulus holds",
        paper="4",
    )
    dropped: float = parameter(
        0.0,
        ge=0,
        lt=1,
        doc="share of each cohort that drops out, with its noise",
    )
    dropped_at_most: float = parameter(
        0.0,
        ge=0,
        lt=1,
        doc=(
            "share that may drop out: its noise is not counted, and all clients"
            " add more"
        ),
    )
    colluding: float = parameter(
        0.0,
        ge=0,
        lt=0.5,
        doc=(
            "share, below half, that may reveal its noise to the server, which is"
            " not counted"
        ),
    )

    def gone(self, cohort: int) -> int:
        """Return the number of clients of a cohort that drop out."""
        return math.ceil(self.dropped * cohort - 1e-9)

    def colluders(self, cohort: int) -> int:
        """Return the number of clients of a cohort that may reveal their noise."""
        return math.ceil(self.colluding * cohort - 1e-9)

    def counted(self, cohort: int) -> int:
        """Return the number of shares of noise that the account counts."""
        return (
            cohort
            - math.floor(self.dropped_at_most * cohort + 1e-9)
            - self.colluders(cohort)
        )

    def lattice(
        self, *, dimension: int, threshold: float, noise_multiplier: float, cohort: int
    ) -> Lattice:
        """Return the integer lattice of a round.

        Raises:
            DpsumError: the modulus is too small.
        """
        return Lattice.finest(
            dimension=dimension,
            threshold=threshold,
            noise_multiplier=noise_multiplier,
            bits=self.bits,
            deviations=self.deviations,
            clients=cohort,
            counted=self.counted(cohort),
        )

    def private_sum(
        self,
        *,
        streams: Callable[..., Any],
        cohort: float,
        **values: Any,
    ) -> PrivateSum:
        size = int(cohort)
        _ = values.pop("adjacency")
        lattice = self.lattice(cohort=size, **values)
        return SecureSum(
            **values,
            lattice=lattice,
            dropped=self.gone(size),
            streams=streams,
            colluding=self.colluders(size),
        )

    def secure(self, **values: Any) -> dict[str, Any]:
        return self.lattice(**values).ledger_field(
            **{name: values[name] for name in ("threshold", "noise_multiplier")}
        )
