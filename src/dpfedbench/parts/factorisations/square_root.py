"""The square root of the prefix sums (Fichtenberger, Henzinger and Upadhyay, Constant Matters, ICML 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.parts.factorisations.factorisation import Factorisation
from dpfedbench.settings.part import setting
from dpsum import factorisations

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.parts.server.server_step import ServerStep


class SquareRoot(Factorisation):
    """The encoder A^(1/2) with A all ones, whole or banded; see `dpsum.factorisations.square_root`."""

    kind: Literal["square-root"] = "square-root"
    band: int | None = setting(None, ge=1, doc="draws that a round's noise combines at most; null: those of all rounds")

    def weights(self, rounds: int, step: ServerStep) -> np.ndarray:
        return factorisations.square_root(rounds, band=self.band)
