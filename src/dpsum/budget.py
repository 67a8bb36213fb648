"""The privacy budget: a limit on epsilon."""

from __future__ import annotations

import dataclasses

from dpsum.errors import DpsumError


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
        DpsumError: epsilon is not above 0, delta is not between 0 and 1, or the profile
            is unknown.
    """

    epsilon: float | None = None
    delta: float = 1e-6
    profile: str = "proven"
    stop: bool = True

    def __post_init__(self) -> None:
        """Check the numbers and the profile."""
        if self.epsilon is not None and not self.epsilon > 0:
            raise DpsumError(
                f"the budget's epsilon is {self.epsilon}: it must be above 0, or None"
                " for no limit"
            )
        if not 0 < self.delta < 1:
            raise DpsumError(
                f"the budget's delta is {self.delta}: it must be between 0 and 1"
            )
        if self.profile not in ("proven", "claimed"):
            raise DpsumError(
                f"the budget's profile is {self.profile!r}: it must be proven or"
                " claimed"
            )
