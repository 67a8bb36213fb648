"""What every factorisation is: the encoder C of correlated noise, for so many rounds.

A server that moves a model by sums S_0, S_1, ... over rounds releases A S with a lower triangular A (all ones, where
each step adds its own sum). Written A = B C, the matrix mechanism releases B (C S + z Z) = A (S + z C^-1 Z) with
independent Gaussian Z (Denisov et al. 2022; Kairouz et al. 2021 is the binary tree's B and C): the noise of round t is
row t of C^-1 Z, and what one round adds later rounds take away again. A client that is in round t alone moves C S by
column t of C times what it contributed, so that C is scaled until its largest column has norm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dpfedbench.settings.part import Part

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.parts.server.server_step import ServerStep


class Factorisation(Part):
    """Base of the factorisations."""

    place: ClassVar[str] = "dpfedbench.parts.factorisations"

    def weights(self, rounds: int, step: ServerStep) -> np.ndarray:
        """C^-1, lower triangular, float64 [T, T]; no column of its inverse C has a norm above 1.

        Row t says how round t's noise combines the independent draws of rounds 0 to t. The same bits whatever the
        machine's threads are.

        Args:
            rounds: T.
            step: the server's.
        """
        raise NotImplementedError


def scaled(inverse: np.ndarray) -> np.ndarray:
    """The inverse of an encoder, float64 [T, T], times the encoder's largest column norm, in the last digits up."""
    import math

    import numpy as np

    encoder = inverted(inverse)
    squares = [math.fsum(value * value for value in column) for column in encoder.T.tolist()]
    return np.asarray(inverse * (math.sqrt(max(squares, default=1.0)) * (1 + 1e-12)))


def inverted(lower: np.ndarray) -> np.ndarray:
    """The inverse of a lower triangular matrix, float64 [T, T], row by row: no library's threads are in its bits."""
    import numpy as np

    found = np.eye(len(lower))
    for row in range(len(lower)):
        found[row] -= np.einsum("s,sj->j", lower[row, :row], found[:row])
        found[row] /= lower[row, row]
    return found
