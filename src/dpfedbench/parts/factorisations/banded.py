"""The banded factorisation of least total error, for clients that come several times
(Choquette-Choo et al. 2023).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.parts.factorisations.optimised import Optimised
from dpfedbench.settings.part import setting
from dpsum import factorisations

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.parts.server.server_step import ServerStep


class Banded(Optimised):
    """The `optimised` factorisation with so few diagonals in the encoder that a
    client's columns do not overlap.

    That is so where its rounds are at least `bands` apart: its k participations then
    move the releases by the root of k. More bands are accounted for by their overlap,
    and cost more noise.
    """

    kind: Literal["banded"] = "banded"  # type: ignore[assignment]  # another of the family
    bands: int = setting(
        8,
        ge=1,
        le=factorisations.MOST,
        doc="diagonals of the encoder, the main one among them",
    )

    def weights(self, rounds: int, step: ServerStep) -> np.ndarray:
        return factorisations.banded(self.moved(rounds, step), self.bands)
