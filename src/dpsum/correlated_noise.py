"""Gaussian noise that is correlated over rounds (DP-FTRL, matrix factorisation)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

from dpsum.errors import DpsumError
from dpsum.factorisations import Factorisation, SquareRoot, scaled
from dpsum.lazy import np
from dpsum.noise import Noise
from dpsum.parameters import parameter
from dpsum.sampling import Sampler, Sampling
from dpsum.triangular import inverted


@dataclasses.dataclass(frozen=True)
class Factorised(Noise):
    """Correlated noise whose encoder a factorisation computes for the planned rounds.

    Each round cancels part of the noise that earlier rounds added (DP-FTRL, matrix
    factorisation). The noise of round t is row t of C^-1 Z with independent Gaussian Z,
    for an encoder C (`factorisations`). A unit moves the encoded sums along its column
    of the encoder. That column has norm at most 1, so that the sensitivity of the
    encoded sums is the clipping threshold. Each coordinate of the encoded sums has
    noise of deviation z times the clipping threshold.

    Kairouz et al. 2021, Practical and Private (Deep) Learning without Sampling or
    Shuffling; Denisov et al. 2022, Improved Differential Privacy for SGD via Optimal
    Private Linear Operators on Adaptive Streams.

    No draws are stored between rounds. Each round draws the noise of earlier rounds
    again from their named streams, so that a restarted run draws the same bits. A run
    of T rounds makes T (T + 1) / 2 draws of the model's size, or at most p T with an
    encoder of p bands. The memory is that of two draws.

    Attributes:
        step: the server's step, for encoders that depend on it
            (`Factorisation.weights`).
        separation: least number of rounds between two participations of one unit.
        participations: largest number of rounds in which one unit takes part.
    """

    kind: ClassVar[str] = "correlated"
    mechanism: ClassVar[str] = "correlated-gaussian"

    multiplier: float | None = parameter(
        1.0,
        ge=1e-3,
        le=1e6,
        doc=(
            "z: deviation of the encoded sums' noise over C; null: the least that"
            " the budget allows"
        ),
    )
    factorisation: Factorisation = parameter(SquareRoot(), doc="the encoder")
    rounds: int | None = parameter(
        None,
        ge=1,
        le=10_000,
        doc="rounds that the encoder covers; null: the planned rounds",
    )
    step: Any = None
    separation: int = 1
    participations: int = 1

    def planned(self, rounds: int, step: Any, apart: tuple[int, int]) -> Factorised:
        """Return the noise of a run.

        Args:
            rounds: number of planned rounds.
            step: the server's step.
            apart: separation and number of participations of a unit.
        """
        separation, participations = apart
        return dataclasses.replace(
            self,
            rounds=self.rounds or max(rounds, 1),
            step=step,
            separation=separation,
            participations=participations,
        )

    def inverse(self) -> np.ndarray:
        """Return C^-1 for the T planned rounds, lower triangular, float64 [T, T]."""
        return _weights(self)

    def sampled(self, sampler: Sampler) -> Sampler:
        """Return the sampler, with the encoder where the accountant reads it.

        Raises:
            DpsumError: the participations of a unit move the encoded sums by more than
                the clipping threshold.
        """
        # A local import: the workflow reads plans where scipy is not installed.
        from dpsum.accounting.analyses import known
        from dpsum.accounting.repeated_participation import sensitivity

        everyone = sampler["kind"] == "everyone"
        if everyone or "separation" in sampler:
            encoder = inverted(self.inverse())
            if everyone:
                separation = 1
                times = int(sampler["rounds"])
            else:
                separation = int(sampler["separation"])
                times = int(sampler["participations"])
            _, moved = sensitivity(encoder.T @ encoder, separation, times)
            if moved > 1 + 1e-9:
                raise DpsumError(
                    f"a unit's {times} participations move the"
                    f" encoded sums by {moved:.6g} C: scale the weights by"
                    " `factorisations.scaled(weights, separation=...,"
                    " participations=...)`"
                )
        elif not known(self.mechanism, str(sampler["kind"])):
            return dataclasses.replace(
                Sampling.from_mapping(sampler),
                encoder=np.abs(inverted(self.inverse())).tobytes(),
            )
        return sampler

    def combines(self, index: int) -> list[float]:
        weights = self.inverse()
        if index >= len(weights):
            raise DpsumError(
                f"the factorisation has {len(weights)} rounds, so there is no round"
                f" {index}"
            )
        row: list[float] = weights[index, : index + 1].tolist()
        return row

    def standard(
        self,
        stream_of: Callable[[int], np.random.Generator],
        index: int,
        dimension: int,
    ) -> np.ndarray:
        """Return row `index` of C^-1 Z, float64 [d]."""
        total = np.zeros(dimension)
        draw = np.empty(dimension)
        for earlier, weight in enumerate(self.combines(index)):
            if weight:
                stream_of(earlier).standard_normal(out=draw)
                draw *= weight
                total += draw
        return total


@functools.lru_cache(maxsize=16)
def _weights(noise: Factorised) -> np.ndarray:
    if noise.rounds is None:
        raise DpsumError(
            "the noise has no number of rounds to encode: set rounds, or take"
            " `planned(rounds, step, apart)`"
        )
    weights = noise.factorisation.weights(noise.rounds, noise.step)
    if noise.participations == 1:
        return weights
    return scaled(
        weights, separation=noise.separation, participations=noise.participations
    )
