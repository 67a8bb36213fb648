"""Correlated noise: a round takes back part of what earlier rounds added; see
`dpsum.correlated_noise.Encoded`.

What a client can be told by is the whole of its columns of the encoder, so that z is
over the largest column norm where each client is in one round, and over what all of its
columns come to where it comes again: with known blocks nobody has to be secret and
nobody is sampled. Where each client's one round is secret, less noise is needed. Noise
costs T (T + 1) / 2 draws of the model's size: 0.3 s of one core for 40 rounds of 28,357
coordinates, about 45 s for 250 rounds of 112,000; a `band` of p makes it at most p T.
"""

from __future__ import annotations

import functools
from typing import Literal

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np
from dpfedbench.parts.clipping.rule import ClippingRule
from dpfedbench.parts.factorisations.factorisation import Factorisation, SquareRoot
from dpfedbench.parts.noise.noise import Noise
from dpfedbench.parts.participation.participation import Participation
from dpfedbench.parts.server.server_step import ServerStep
from dpfedbench.settings.part import setting
from dpfedbench.settings.run import Run
from dpsum import correlated_noise
from dpsum.factorisations import scaled


class Correlated(Noise, correlated_noise.Encoded):
    """Noise of deviation z C on each coordinate of the encoded sums; see
    `parts.factorisations`.
    """

    kind: Literal["correlated"] = "correlated"
    multiplier: float | None = setting(
        1.0,
        ge=1e-3,
        le=1e6,
        doc=(
            "z: deviation of the encoded sums' noise over C; null: the least that the"
            " budget allows"
        ),
    )
    factorisation: Factorisation = setting(SquareRoot(), doc="which encoder")
    rounds: int | None = setting(
        None, ge=1, le=10_000, doc="rounds that the encoder is for; null: those planned"
    )

    def check(self, run: Run) -> None:
        plan, clipping = run.part(Participation), run.part(ClippingRule)
        if not plan.correlated:
            raise BenchError(
                f"participation.kind is {plan.kind}, but correlated noise is accounted"
                " for where each client's rounds are known, or where each is in one"
                " secret round: take one-pass, min-separation or balls-and-bins, or"
                " noise.kind fixed"
            )
        if self.rounds is not None and self.rounds < plan.rounds:
            raise BenchError(
                f"noise.rounds is {self.rounds}, fewer than participation.rounds"
                f" ({plan.rounds}): a factorisation has to be for all planned rounds;"
                " raise it, or set it to null"
            )
        if clipping.kind != "constant":
            raise BenchError(
                f"clipping.kind is {clipping.kind}, but correlated noise takes back"
                " what rounds at the same threshold added: take constant"
            )

    def planned(
        self, rounds: int, step: ServerStep, apart: tuple[int, int] = (1, 1)
    ) -> Planned:
        """The noise of a run of so many rounds, whose server takes these steps.

        Args:
            rounds: that are planned.
            step: the server's.
            apart: how many rounds a client's lie apart at least, and in how many of
                them it is at most.
        """
        return Planned(
            multiplier=self.multiplier,
            factorisation=self.factorisation,
            rounds=self.rounds or max(rounds, 1),
            step=step,
            separation=apart[0],
            participations=apart[1],
        )


class Planned(Correlated):
    """Correlated noise of a run: what it draws follows from the planned rounds and, for
    some encoders, the server.
    """

    step: ServerStep
    separation: int = 1
    participations: int = 1

    def inverse(self) -> np.ndarray:
        return _weights(self)


@functools.lru_cache(maxsize=16)
def _weights(planned: Planned) -> np.ndarray:
    weights = planned.factorisation.weights(planned.rounds or 0, planned.step)
    if planned.participations == 1:
        return weights
    return scaled(
        weights, separation=planned.separation, participations=planned.participations
    )
