"""Transformations of a contribution: it is multiplied by a factor that follows from its
own norm.

This costs no privacy and needs no proof: what becomes of a contribution depends on no
other, and the sum clips that to C as it clips any. So the sum moves by at most C where
a unit's contribution becomes zero, whatever the factor.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.lazy import torch
from dpfedbench.settings.part import Part


class Transform(Part):
    """Base of the transformations."""

    package: ClassVar[str] = "dpfedbench.parts.transforms"
    trivial: ClassVar[bool] = False
    """Whether contributions stay as they are, so that they may be added up while they
    are computed.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that could let one contribution change another."""
        super().__init_subclass__(**options)
        if "rows" in vars(cls):
            raise BenchError(
                f"{cls.__module__}.{cls.__name__} has rows of its own, but the account"
                " takes what becomes of a contribution to follow from its own norm"
                " alone: write factor instead"
            )

    def factor(self, norm: float) -> float:
        """Return the factor by which a contribution of this L2 norm over all weights is
        multiplied.
        """
        raise NotImplementedError

    def rows(self, contributions: torch.Tensor) -> torch.Tensor:
        """Contributions [n, d], each times its own factor; one that is not finite stays
        so, and counts as zero.
        """
        if self.trivial:
            return contributions
        norms = torch.linalg.vector_norm(contributions, dim=1, dtype=torch.float64)
        factors = [self.factor(norm) for norm in norms.tolist()]
        return (
            contributions
            * torch.tensor(
                factors, dtype=contributions.dtype, device=contributions.device
            )[:, None]
        )


class AsTheyAre(Transform):
    """Nothing is done to a contribution before it is clipped."""

    kind: Literal["none"] = "none"
    trivial = True

    def factor(self, norm: float) -> float:
        return 1.0
