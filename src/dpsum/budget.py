"""The privacy budget: a limit on epsilon."""

import dataclasses
from typing import Literal

from dpsum.errors import DpsumError
from dpsum.parameters import check_bounds, parameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """Limit on the epsilon of sums that read the same units.

    Attributes:
        epsilon: the limit. None: no limit; what was spent is only reported.
        delta: the delta at which epsilon is stated.
        profile: the accounting that the limit applies to: "proven", or "claimed" (the
            paper's, see `Composition`).
        stop: whether rounds beyond the limit are refused. If false, the limit only
            calibrates the noise.

    Raises:
        DpsumError: a number is out of bounds, or the profile is unknown.
    """

    epsilon: float | None = parameter(
        None,
        ge=1e-3,
        le=1e6,
        doc="training stops before ε exceeds this; null: never",
        paper="1.52",
    )
    delta: float = parameter(
        1e-6, ge=1e-30, lt=1, doc="delta at which epsilon is reported", paper="1e-6"
    )
    profile: Literal["claimed", "proven"] = parameter("proven", doc="ε that is limited")
    stop: bool = parameter(True, doc="false: ε does not stop the training")

    def __post_init__(self) -> None:
        """Check the bounds of the numbers, and the profile."""
        check_bounds(self)
        if self.profile not in ("claimed", "proven"):
            raise DpsumError(f"profile is {self.profile!r}: expected claimed or proven")
