"""What every factorisation of a configuration is: which encoder C correlated noise has; see `dpsum.factorisations`."""

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
