"""Factorisations: which encoder C correlated noise has; see `dpsum.factorisations`."""

from __future__ import annotations

from typing import ClassVar, Literal

from dpfedbench.lazy import np
from dpfedbench.parts.server.server_step import ServerStep
from dpfedbench.settings.part import Part, setting
from dpsum import factorisations


class Factorisation(Part):
    """Base of the factorisations."""

    place: ClassVar[str] = "dpfedbench.parts.factorisations"

    def weights(self, rounds: int, step: ServerStep) -> np.ndarray:
        """C^-1, lower triangular, float64 [T, T]; no column of its inverse C has a norm
        above 1.

        Row t says how round t's noise combines the independent draws of rounds 0 to t.
        The same bits whatever the machine's threads are.

        Args:
            rounds: T.
            step: the server's.
        """
        raise NotImplementedError


class SquareRoot(Factorisation):
    """The encoder A^(1/2) with A all ones, whole or banded; see
    `dpsum.factorisations.square_root`.

    Fichtenberger, Henzinger and Upadhyay, Constant Matters, ICML 2023.
    """

    kind: Literal["square-root"] = "square-root"
    band: int | None = setting(
        None,
        ge=1,
        doc="draws that a round's noise combines at most; null: those of all rounds",
    )

    def weights(self, rounds: int, step: ServerStep) -> np.ndarray:
        return factorisations.square_root(rounds, band=self.band)
