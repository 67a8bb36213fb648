"""The square root of the prefix sums (Fichtenberger, Henzinger and Upadhyay, Constant Matters, ICML 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.parts.factorisations.factorisation import Factorisation, scaled
from dpfedbench.settings.part import setting

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.parts.server.server_step import ServerStep


class SquareRoot(Factorisation):
    """B = C = A^(1/2) with A all ones: the Toeplitz matrix of (1 - x)^(-1/2), whose inverse is that of (1 - x)^(1/2).

    With `band` the inverse keeps only so many diagonals, so that a round's noise combines as many draws (Kalinin et
    al., Back to Square Roots, 2025); the encoder and its column norm are those of the inverse that is kept.
    """

    kind: Literal["square-root"] = "square-root"
    band: int | None = setting(None, ge=1, doc="draws that a round's noise combines at most; null: those of all rounds")

    def weights(self, rounds: int, step: ServerStep) -> np.ndarray:
        import numpy as np

        inverse, value = np.zeros((rounds, rounds)), 1.0
        for back in range(min(rounds, self.band or rounds)):
            np.fill_diagonal(inverse[back:], value)
            value *= (back - 0.5) / (back + 1)
        return scaled(inverse)
