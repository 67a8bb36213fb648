"""Contributions as they are."""

from __future__ import annotations

from typing import ClassVar, Literal

from dpfedbench.parts.transforms.transform import Transform


class AsTheyAre(Transform):
    """Nothing is done to a contribution before it is clipped."""

    kind: Literal["none"] = "none"
    trivial: ClassVar[bool] = True

    def factor(self, norm: float) -> float:
        return 1.0
