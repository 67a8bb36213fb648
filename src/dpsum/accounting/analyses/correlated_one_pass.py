"""Correlated noise in one pass over disjoint blocks that the observer may know: one Gaussian release.

The released sums are S + sigma C^-1 Z with independent standard Z, which is the same as C S + sigma Z. A client is in
one round t, where its contribution has norm at most the threshold, so that C S moves by column t of C times that: one
Gaussian release, also where what clients compute follows from earlier releases (Denisov et al. 2022, Theorem 2.1). The
ledger says the rows of C^-1, and C is found from them: nothing is taken on trust. The rounds that were run are a
leading block of C^-1, whose inverse is that block of C, so a run that was stopped is accounted for by what it released.

What moves with an image: clients that use it, in several rounds, add up to at most c_t thresholds in round t, and C S
moves by at most (c^T |C^T C| c)^1/2, which they reach if they point the same way and no entry of C^T C is below 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.linalg import solve_triangular

from dpsum.accounting.analyses.base import Reading
from dpsum.accounting.analyses.one_pass import OnePass
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler
from dpsum.errors import DpsumError
from dpsum.ledger import Release

_MEND = "delete the run's folder and train again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorrelatedReading(Reading):
    """As `Reading`; `gram` is C^T C over sigma^2 in units of the threshold, float64 [rounds, rounds]."""

    gram: np.ndarray


class CorrelatedOnePass(OnePass):
    """Known blocks, exactly: the client in the round of the encoder's largest column is the worst off."""

    mechanism = "correlated-gaussian"
    explanation = (
        "disjoint batches known to the observer, correlated noise: all releases are one Gaussian release of the "
        "encoder's largest column norm, found from the ledger's weights; exact"
    )

    images = (
        "every client that uses the image contributes zero, over all rounds together; known blocks: one Gaussian for "
        "the worst image of this partition, found from the ledger's weights"
    )

    def read(self, releases: Sequence[Release]) -> CorrelatedReading:
        read = super().read(releases)
        gram = gram_of(releases)
        worst = float(np.diag(gram).max()) ** -0.5
        rounds = len(releases)
        whole = {"schedule": ((worst, rounds),), "claimed": ((worst, rounds),), "multipliers": [worst] * rounds}
        values = {field.name: getattr(read, field.name) for field in dataclasses.fields(read)}
        return CorrelatedReading(**values | whole, gram=gram)

    def image_ends(self, reading: Reading, use: ImageUse, delta: float) -> Bracket:
        assert isinstance(reading, CorrelatedReading)
        squares = [_worst_square(use, gram) for gram in (reading.gram, np.abs(reading.gram))]
        low, high = (gaussian_epsilon(square**-0.5, delta) if square > 0 else 0.0 for square in squares)
        return low, high

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        raise DpsumError("the image level of correlated noise takes the ledger's weights, not z alone")


def gram_of(releases: Sequence[Release]) -> np.ndarray:
    """C^T C over sigma^2, in units of the threshold, of the rounds that were run; errors as of `encoder_of`."""
    encoder, scale = encoder_of(releases)
    return np.asarray(encoder.T @ encoder * scale**2)


def encoder_of(releases: Sequence[Release]) -> tuple[np.ndarray, float]:
    """C of the rounds that were run, from a ledger, and the threshold over the noise's deviation.

    Raises:
        DpsumError: rows are missing or of another length, the threshold moved, or the encoder moves by more than the
            ledger's sensitivity says.
    """
    first, inverse = releases[0], np.zeros((len(releases), len(releases)))
    if len({event.name for event in releases}) > 1:
        raise DpsumError("the ledger has releases beside those of correlated noise: account for them apart")
    for number, event in enumerate(releases):
        row = event.combines
        if row is None or len(row) != number + 1 or not all(map(math.isfinite, row)) or not row[-1]:
            raise DpsumError(
                f"the ledger's release {number} does not say which draws its noise combines, {number + 1} in all: "
                f"{_MEND}"
            )
        if (event.threshold, event.noise_std) != (first.threshold, first.noise_std):
            raise DpsumError(
                f"the ledger's release {number} has another threshold or noise than the first: correlated noise is "
                "accounted for at a constant one"
            )
        inverse[number, : number + 1] = row
    encoder = solve_triangular(inverse, np.eye(len(releases)), lower=True)
    worst = float(np.sqrt((encoder**2).sum(axis=0).max()))
    if worst * float(np.max(first.threshold)) > float(np.max(first.sensitivity)) * (1 + 1e-9):
        raise DpsumError(
            f"the ledger declares sensitivity {first.sensitivity}, but its encoder has a column of norm {worst:.6g}: "
            "its mechanism is not the one accounted for"
        )
    return encoder, float(np.max(first.threshold) / np.max(first.noise_std))


def _worst_square(use: ImageUse, gram: np.ndarray) -> float:
    """The greatest c^T G c of any image, with c_t the clients of round t that use it."""
    assert use.rounds is not None
    done = len(gram)
    taking = np.flatnonzero((use.rounds >= 0) & (use.rounds < done))
    if not len(taking):
        return 0.0
    images, places = np.unique(use.images[taking], return_inverse=True)
    counts = np.zeros((len(images), done))
    np.add.at(counts, (places.reshape(len(taking), -1), use.rounds[taking][:, None]), 1.0)
    return float(np.einsum("it,ts,is->i", counts, gram, counts, optimize=True).max())
