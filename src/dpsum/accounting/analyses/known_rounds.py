"""Participation in rounds that the observer may know.

All releases are one Gaussian for each unit: several releases of independent noise are
one of multiplier (sum of z^-2)^-1/2. For correlated noise, `correlated` finds that
multiplier from the encoder.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from dploss.gaussian import Bracket, gaussian_epsilon
from dpsum.accounting.accountant import Accountant, Events
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.repeated_participation import heaviest, periodic_rounds
from dpsum.ledger import Release
from dpsum.sampling import Sampling


def epsilon_of_square(square: float, delta: float) -> float:
    """Return the exact epsilon of one Gaussian.

    Args:
        square: squared distance of the means, in deviations of the noise.
        delta: delta at which epsilon is stated.
    """
    if square > 0:
        return gaussian_epsilon(square**-0.5, delta)
    return 0.0


class OnePassAccountant(Accountant):
    """Accountant of disjoint known blocks, exact.

    If the noise differs between rounds, the worst client is that of the least noisy
    round.
    """

    pair = "gaussian", "one-pass"
    known = True
    explanation = (
        "disjoint batches known to the observer: each client is in one Gaussian"
        " release; exact"
    )
    images = (
        "every client that uses the image contributes zero; known blocks: one Gaussian"
        " for the worst image of this partition; exact"
    )

    def check_numbers(self, sampling: Sampling) -> None:
        """Check that there are enough clients for disjoint blocks in all rounds."""
        super().check_numbers(sampling)
        if sampling["cohort"] * sampling["rounds"] > sampling["clients"]:
            raise self.contradiction(
                sampling, "one pass over the clients has fewer rounds"
            )

    def gaussian(self, events: Events) -> float:
        return events.ends[0]

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        exact = epsilon_of_square(use.worst_square(events.multipliers), delta)
        return exact, exact


class MinSeparationAccountant(Accountant):
    """Accountant of several participations with a minimal separation.

    The high end is that of the worst allowed set of rounds. It is exact where the noise
    is the same in all rounds. Else the low end is that of the worst rounds that
    `participation.MinSeparation` draws (`repeated_participation`).
    """

    width = (
        "the high end is of any rounds so far apart, the low end of rounds at equal"
        " distances"
    )

    pair = "gaussian", "min-separation"
    known = True
    records_too = True
    explanation = (
        "rounds known to the observer, a unit's at least so many apart and at most so"
        " many in all: one Gaussian for all releases that it can be in; exact"
    )
    images = (
        "every client that uses the image contributes zero: at most one Gaussian with"
        " all of them in the same rounds, at least one client's"
    )

    def check_numbers(self, sampling: Sampling) -> None:
        """Check that disjoint cohorts of as many rounds as the separation are possible.

        No unit takes part twice within the separation.
        """
        super().check_numbers(sampling)
        self.check_whole(sampling, "separation", "participations")
        units = sampling[self.units_of(sampling)]
        separation = sampling["separation"]
        times = sampling["participations"]
        rounds_apart = min(separation, sampling["rounds"])
        if sampling["cohort"] * rounds_apart > units:
            raise self.contradiction(
                sampling,
                f"{separation} rounds without a repeated unit need more units",
            )
        if times > -(-sampling["rounds"] // separation):
            raise self.contradiction(
                sampling,
                f"no unit can be in {times} of {sampling['rounds']} rounds,"
                f" {separation} apart",
            )
        if sampling["cohort"] * sampling["rounds"] > units * times:
            raise self.contradiction(
                sampling,
                f"{units:,} units with {times} participations each fill fewer rounds",
            )

    def times(self, sampling: Sampling, done: int) -> int:
        """Return the largest number of the run rounds in which a unit can take part."""
        return min(
            int(sampling["participations"]), -(-done // int(sampling["separation"]))
        )

    def worst(self, sampling: Sampling, multipliers: Sequence[float]) -> float:
        """Return the largest sum of z^-2 over an allowed set of rounds of a unit."""
        separation = int(sampling["separation"])
        times = int(sampling["participations"])
        weights = np.array(multipliers) ** -2.0
        return heaviest(weights, separation, times)

    def drawn(self, sampling: Sampling, multipliers: Sequence[float]) -> float:
        """Return the largest sum of z^-2 over a set of rounds that is drawn."""
        weights = np.array(multipliers) ** -2.0
        sets = periodic_rounds(
            len(multipliers),
            int(sampling["separation"]),
            int(sampling["participations"]),
        )
        return max(float(weights[rounds].sum()) for rounds in sets)

    def bracket(self, events: Events, delta: float) -> Bracket:
        high = gaussian_epsilon(self.gaussian(events), delta)
        if events.details is None:
            return high, high
        return min(epsilon_of_square(events.details, delta), high), high

    def explain(self, events: Events) -> str:
        text = super().explain(events)
        if events.details is None:
            return text
        return text.removesuffix("; exact")

    def gaussian(self, events: Events) -> float:
        least, _, done = events.ends
        return least * self.times(events.sampling, done) ** -0.5

    def read(self, lines: Sequence[Release]) -> Events:
        events = super().read(lines)
        if len(events.schedule) == 1 or events.sampling.batches == "secret":
            return events
        done = len(events.multipliers)
        worst = self.worst(events.sampling, events.multipliers)
        drawn = self.drawn(events.sampling, events.multipliers)
        is_exact = drawn >= worst * (1 - 1e-12)
        # Constant noise with the same `gaussian` as the worst set of rounds.
        return dataclasses.replace(
            events,
            schedule=(((self.times(events.sampling, done) / worst) ** 0.5, done),),
            details=None if is_exact else drawn,
        )

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        low, _ = self.bracket(events, delta)
        return low, gaussian_epsilon(self.gaussian(events) / use.most, delta)


class ShuffledEpochsAccountant(MinSeparationAccountant):
    """Accountant of epochs over disjoint batches of a list that is shuffled anew.

    A unit is in at most one batch of each epoch. Where batches are known, that is one
    Gaussian release for each epoch: exact. Where they are secret, it is a high end,
    since revealing them can only help the observer. (`dpwatch` has a low end.) If the
    noise differs between rounds, the least noisy round of each epoch counts.
    """

    pair = "gaussian", "shuffled-epochs"
    explanation = (
        "disjoint batches in each epoch: a unit is in one Gaussian release an epoch"
    )
    width = "no theory says how much secret batches of an epoch hide"

    def check_numbers(self, sampling: Sampling) -> None:
        """Check that an epoch is one pass over the units.

        The last units may be left out, or form a smaller batch.
        """
        Accountant.check_numbers(self, sampling)
        self.check_whole(sampling, "cohort", "epoch")
        units = int(sampling[self.units_of(sampling)])
        cohort = int(sampling["cohort"])
        least = units // cohort
        most = -(-units // cohort)
        if sampling["epoch"] not in (least, most):
            text = (
                f"an epoch of batches of {cohort:,} of {units:,} has"
                f" {units // cohort:,} rounds, or one more"
            )
            raise self.contradiction(sampling, text)
        if sampling.get("batches") not in ("known", "secret"):
            raise self.contradiction(sampling, "batches is neither known nor secret")

    def times(self, sampling: Sampling, done: int) -> int:
        return -(-done // int(sampling["epoch"]))

    def worst(self, sampling: Sampling, multipliers: Sequence[float]) -> float:
        epoch = int(sampling["epoch"])
        return sum(
            min(multipliers[start : start + epoch]) ** -2.0
            for start in range(0, len(multipliers), epoch)
        )

    def drawn(self, sampling: Sampling, multipliers: Sequence[float]) -> float:
        """Return the sum of z^-2 of the noisiest round of each whole epoch.

        A unit is in a round of each of them, whatever was drawn. (The last units of the
        list may be left out, but not all.)
        """
        epoch = int(sampling["epoch"])
        return sum(
            max(multipliers[start : start + epoch]) ** -2.0
            for start in range(0, len(multipliers) - epoch + 1, epoch)
        )

    def bracket(self, events: Events, delta: float) -> Bracket:
        return self._ends(events, delta, self.gaussian(events))

    def replaced(self, events: Events, delta: float) -> Bracket:
        half = self.gaussian(events) / 2
        return self._ends(events, delta, half)

    def _ends(self, events: Events, delta: float, multiplier: float) -> Bracket:
        high = gaussian_epsilon(multiplier, delta)
        # An epoch that is one batch of all units keeps nothing secret.
        if events.sampling["batches"] == "known" or events.rate == 1:
            if events.details is None:
                return high, high
            share = self.gaussian(events) / multiplier  # 2 for a replacement
            low = epsilon_of_square(events.details * share**2, delta)
            return min(low, high), high
        return min(self.low_of_secret_batches(events, delta), high), high

    def low_of_secret_batches(self, events: Events, delta: float) -> float:
        """Return a low end of epsilon where batches are secret."""
        return 0.0

    def high(self, events: Events, delta: float) -> float:
        return gaussian_epsilon(self.gaussian(events), delta)

    def explain(self, events: Events) -> str:
        if events.sampling["batches"] == "known":
            text = f"{self.explanation}; the observer may know which"
            return text if events.details is not None else f"{text}; exact"
        return (
            f"{self.explanation}; which is secret, from which nothing is taken for the"
            " high end"
        )


class OwnUpdateAccountant(OnePassAccountant):
    """Accountant of a client's own update, clipped and noised locally (local privacy).

    It protects everything that the client holds. The client takes part once, and its
    message is one Gaussian release. The client is always present, so that neighbours
    differ in its data: the update becomes any other of norm C, which moves it by up to
    2C, the ledger's sensitivity. What the server computes is post-processing.
    """

    pair = "gaussian", "local"
    adjacency = "replace-one"
    explanation = (
        "a client takes part once and noises its own update, of sensitivity 2C: one"
        " Gaussian; exact"
    )
    images = (
        "every client that uses the image sends another update, each with noise of its"
        " own: one Gaussian for the worst image of this partition; exact where it is"
        " known who took part"
    )

    def check_numbers(self, sampling: Sampling) -> None:
        """Check that each client makes one update at rate 1."""
        if sampling["rate"] != 1 or sampling.get("steps") != 1:
            raise self.contradiction(
                sampling, "a client's own update is one release, at rate 1"
            )
        if sampling["cohort"] * sampling["rounds"] > sampling["clients"]:
            raise self.contradiction(
                sampling,
                "clients with one participation each fill fewer rounds",
            )

    def read(self, lines: Sequence[Release]) -> Events:
        events = super().read(lines)
        ((counted, sampling),) = events.claimed
        return dataclasses.replace(
            events, claimed=((((min(z for z, _ in counted), 1),), sampling),)
        )

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        if use.rounds is not None:
            square = use.worst_square(events.multipliers, apart=True)
            exact = epsilon_of_square(square, delta)
            return exact, exact
        # Rounds are secret; after the last, everyone has taken part.
        root = use.most**0.5
        high = gaussian_epsilon(min(events.multipliers) / root, delta)
        participations = len(events.multipliers) * events.sampling["cohort"]
        if participations != events.sampling["clients"]:
            return 0.0, high
        low = gaussian_epsilon(max(events.multipliers) / root, delta)
        return low, high
