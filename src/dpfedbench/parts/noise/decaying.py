"""Noise that decays as a public validation loss falls (Adap DP-FL, Section IV-B)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.noise.noise import Noise
from dpfedbench.settings.part import setting
from dpsum import noise

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run


class Decaying(Noise, noise.Decaying):
    """After `falls` falls in a row of the validation loss, z is multiplied by `decay`."""

    kind: Literal["decaying"] = "decaying"
    multiplier: float | None = setting(
        6.0, ge=1e-3, le=1e6, doc="z of the first round", paper="6 (MNIST), 4 (Fashion-MNIST)"
    )
    decay: float = setting(0.9999, gt=0, lt=1, doc="beta", paper="0.9999 (MNIST), 0.9998 (Fashion-MNIST)")
    falls: int = setting(3, ge=1, le=1_000_000, doc="falls in a row of the validation loss", paper="3")

    def check(self, run: Run) -> None:
        if not run.validation.public:
            raise BenchError(
                "validation.public is false, but its loss drives the noise (noise.kind decaying): what it tells "
                "of private records is in no account; take public records, or noise.kind fixed"
            )
        if not run.validation.every:
            raise BenchError("noise.kind is decaying, but validation.every is 0: set it to 1")
        if self.multiplier is None:
            raise BenchError("noise.multiplier is null, but noise that decays needs a first value: give one")
