"""Noise that stays as it is."""

from __future__ import annotations

from typing import Literal

from dpfedbench.parts.noise.noise import Noise
from dpfedbench.settings.part import setting
from dpsum import noise


class Fixed(Noise, noise.Independent):
    """Independent Gaussian noise of deviation z C in each round."""

    kind: Literal["fixed"] = "fixed"
    multiplier: float | None = setting(
        1.0,
        ge=1e-3,
        le=1e7,
        doc="z: noise standard deviation over C; null: the least that the budget allows",
        paper="1",
    )
