"""Correlated noise in known rounds: all releases are one Gaussian release.

The released sums are S + sigma C^-1 Z with independent standard Z, which is the same as
C S + sigma Z. A client that is in one round t alone, where its contribution has norm at
most the threshold, moves C S by column t of C times that: one Gaussian release, also
where what clients compute follows from earlier releases (Denisov et al. 2022, Theorem
2.1). A client of several rounds moves several columns at once; by how much at most is
bracketed in `accounting.repeated_participation`. The ledger has the rows of C^-1, from
which the accountant computes C. The rounds that were run are a leading block of C^-1,
whose inverse is that block of C, so that the account of a stopped run covers its
releases.

At the image level, the clients that use an image, in several rounds, add up to at most
c_t thresholds in round t, and C S moves by at most (c^T |C^T C| c)^1/2. They reach it
if they point the same way and no entry of C^T C is below 0.

Rounds may be planned before the weights are known. The plan then takes z as that of all
releases together, which holds for noise that divides its encoder by the sensitivity of
all participations. The account of a ledger never assumes it.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from dploss.gaussian import Bracket, gaussian_epsilon
from dpsum.accounting.accountant import MEND, Accountant, Events
from dpsum.accounting.analyses.everyone import check_everyone
from dpsum.accounting.analyses.known_rounds import (
    MinSeparationAccountant,
    OnePassAccountant,
    epsilon_of_square,
)
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.repeated_participation import sensitivity
from dpsum.errors import DpsumError
from dpsum.ledger import Release
from dpsum.sampling import Sampling
from dpsum.triangular import inverted


class CorrelatedOnePassAccountant(OnePassAccountant):
    """Accountant of correlated noise in known blocks, exact.

    The worst client is in the round of the encoder's largest column.
    """

    pair = "correlated-gaussian", "one-pass"
    explanation = (
        "disjoint batches known to the observer, correlated noise: all releases are one"
        " Gaussian release of the encoder's largest column norm, found from the"
        " ledger's weights; exact"
    )
    images = (
        "every client that uses the image contributes zero, over all rounds together;"
        " known blocks: one Gaussian for the worst image of this partition, found from"
        " the ledger's weights"
    )

    def read(self, lines: Sequence[Release]) -> Events:
        """Read the ledger, and keep C^T C over sigma^2 (`details`).

        It is in units of the threshold, float64 [rounds, rounds].
        """
        events = super().read(lines)
        gram = gram_of(lines)
        largest = float(np.diag(gram).max())
        return _as_one(events, largest**-0.5, gram)

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        if events.details is None:
            raise DpsumError(
                "the image-level epsilon of correlated noise needs the ledger's"
                " weights, not z alone"
            )
        low = _worst_square(use, events.details)
        high = _worst_square(use, np.abs(events.details))
        return epsilon_of_square(low, delta), epsilon_of_square(high, delta)


class CorrelatedMinSeparationAccountant(MinSeparationAccountant):
    """Accountant of correlated noise with several participations.

    The bracket is exact where the worst set of rounds is known: for banded encoders
    with at most as many bands as the separation, and for Toeplitz encoders of falling
    weights.
    """

    pair = "correlated-gaussian", "min-separation"
    explanation = (
        "rounds known to the observer, a unit's at least so many apart and at most so"
        " many in all, correlated noise: all releases are one Gaussian release of the"
        " encoder's columns of the worst such rounds, found from the ledger's weights"
    )
    width = (
        "a unit's worst rounds are too many to try all of them, and are bounded from"
        " both sides"
    )

    def read(self, lines: Sequence[Release]) -> Events:
        """Read the ledger, and keep the low end of the sensitivity (`details`).

        It is in deviations of the noise.
        """
        events = Accountant.read(self, lines)
        separation, participations = self.apart(events.sampling)
        low, high = sensitivity(gram_of(lines), separation, participations)
        return _as_one(events, 1 / high, low)

    def apart(self, sampling: Sampling) -> tuple[int, int]:
        """Return the separation of a unit's rounds, and its number of participations."""
        return int(sampling["separation"]), int(sampling["participations"])

    def gaussian(self, events: Events) -> float:
        return events.ends[0]

    def bracket(self, events: Events, delta: float) -> Bracket:
        high = gaussian_epsilon(self.gaussian(events), delta)
        if events.details is None:
            return high, high
        low = gaussian_epsilon(1 / events.details, delta)
        return min(low, high), high


class CorrelatedEveryoneAccountant(CorrelatedMinSeparationAccountant):
    """Accountant of every unit in every round: a separation of one round."""

    pair = "correlated-gaussian", "everyone"
    explanation = (
        "each unit is in each round, correlated noise: all releases are one Gaussian"
        " release of the sum of the encoder's columns, found from the ledger's weights"
    )

    check_numbers = check_everyone

    def apart(self, sampling: Sampling) -> tuple[int, int]:
        return 1, int(sampling["rounds"])


def _as_one(events: Events, multiplier: float, details: object) -> Events:
    """Return the events of constant-noise rounds that together have a multiplier."""
    rounds = len(events.multipliers)
    same = ((multiplier, rounds),)
    return dataclasses.replace(
        events,
        schedule=same,
        claimed=((same, events.sampling),),
        multipliers=[multiplier] * rounds,
        details=details,
    )


def gram_of(lines: Sequence[Release]) -> np.ndarray:
    """Return C^T C over sigma^2 of the run rounds, in units of the threshold.

    Errors as in `encoder_of`.
    """
    encoder, scale = encoder_of(lines)
    return np.asarray(encoder.T @ encoder * scale**2)


def encoder_of(lines: Sequence[Release]) -> tuple[np.ndarray, float]:
    """Return C of the run rounds, and the threshold over the noise's deviation.

    Raises:
        DpsumError: rows are missing or of another length, the threshold changed, or the
            encoder has a larger sensitivity than the ledger states.
    """
    first = lines[0]
    rounds = len(lines)
    inverse = np.zeros((rounds, rounds))
    if len({event.name for event in lines}) > 1:
        raise DpsumError(
            "the ledger has releases without correlated noise too: account for them"
            " separately"
        )
    for number, event in enumerate(lines):
        row = event.combines
        if (
            row is None
            or len(row) != number + 1
            or not all(map(math.isfinite, row))
            or not row[-1]
        ):
            raise DpsumError(
                f"the ledger's release {number} does not state the weights of the"
                f" {number + 1} draws that its noise combines: {MEND}"
            )
        is_same = event.threshold == first.threshold
        if not is_same or event.noise_std != first.noise_std:
            raise DpsumError(
                f"the ledger's release {number} has another threshold or noise than the"
                " first: correlated noise is accounted for at a constant one"
            )
        inverse[number, : number + 1] = row
    encoder = inverted(inverse)
    squares = (encoder**2).sum(axis=0)
    worst = float(np.sqrt(squares.max()))
    if worst * float(np.max(first.threshold)) > float(np.max(first.sensitivity)) * (
        1 + 1e-9
    ):
        raise DpsumError(
            f"the ledger declares sensitivity {first.sensitivity}, but its encoder has"
            f" a column of norm {worst:.6g}: its mechanism is not the one accounted for"
        )
    scale = np.max(first.threshold) / np.max(first.noise_std)
    return encoder, float(scale)


def _worst_square(use: ImageUse, gram: np.ndarray) -> float:
    """Return the greatest c^T G c of any image.

    c_t is the number of clients of round t that use the image.
    """
    done = len(gram)
    images, rounds = use.taking_part(done)
    if not len(rounds):
        return 0.0
    distinct_images, image_indices = np.unique(images, return_inverse=True)
    counts = np.zeros((len(distinct_images), done))
    image_indices = image_indices.reshape(images.shape)
    np.add.at(counts, (image_indices, rounds[:, None]), 1.0)
    squares = np.einsum("it,ts,is->i", counts, gram, counts, optimize=True)
    return float(squares.max())
