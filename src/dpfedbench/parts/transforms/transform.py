"""Transformations of a contribution: multiplication by a factor that follows from its
norm.

A transformation costs no privacy and needs no proof. The transformed contribution
depends on no other contribution, and the sum clips it to C like any contribution. So
the sum moves by at most C when a unit's contribution becomes zero, whatever the factor.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from dpfedbench.config.part import Part
from dpfedbench.errors import BenchError
from dpfedbench.lazy import torch


class Transform(Part):
    """Base of the transformations."""

    package: ClassVar[str] = "dpfedbench.parts.transforms"
    trivial: ClassVar[bool] = False
    """Whether contributions stay unchanged, so that they may be added up while they are
    computed.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that could let one contribution change another."""
        super().__init_subclass__(**options)
        if "rows" in vars(cls):
            raise BenchError(
                f"{cls.__module__}.{cls.__name__} overrides rows, but the account"
                " assumes that a transformed contribution depends on its own norm"
                " alone: define factor instead"
            )

    def factor(self, norm: float) -> float:
        """Return the factor for a contribution with this L2 norm over all weights."""
        raise NotImplementedError

    def rows(self, contributions: torch.Tensor) -> torch.Tensor:
        """Return the contributions [n, d], each multiplied by its factor.

        A contribution that is not finite stays so, and counts as zero.
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
    """No transformation of contributions."""

    kind: Literal["none"] = "none"
    trivial = True
