"""Ways of participation: which units take part in which round, and by what number a
round's sum may be divided.

A way describes itself for the ledger (`describe`), so that the sampler that ran and the
one that is accounted for are the same object's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from dpsum.errors import DpsumError
from dpsum.lazy import np
from dpsum.randomness import Seed, fresh, stream
from dpsum.sampling import Sampling

_DRAWN_BY = ("cohort", "describe", "denominator")
"""Members that an analysis is of: the name of a sampler stands for all of them."""


class Participation:
    """Base: which of so many units take part in which round.

    Args:
        units, cohort, rounds: N, L (or its expectation) and T.
        seed: of the draws; None: from the operating system's entropy, so that no one
            can draw the same.
        kind: the sampler's name in the ledger; by default that of the class. A way of
            one's own gives its own name, for which no analysis of another is taken.

    Attributes:
        once: whether a unit takes part at most once.
        known: whether an observer may know who takes part when.

    Raises:
        DpsumError: numbers that contradict one another.
    """

    kind: str = ""
    once: ClassVar[bool] = False
    known: ClassVar[bool] = False

    def __init__(
        self, *, units: int, cohort: int, rounds: int, seed: Seed = None, kind: str = ""
    ) -> None:
        if not 1 <= cohort <= units:
            raise DpsumError(
                f"participation.cohort is {cohort} of {units} units: it must be from 1"
                " to their number"
            )
        if rounds < 0:
            raise DpsumError(f"participation.rounds is {rounds}: it must be at least 0")
        self.kind = kind or self.kind
        self.units = units
        self.size = cohort
        self.rounds = rounds
        self.seed = fresh(seed)
        self._begin()

    def _begin(self) -> None:
        """Refuse numbers that this way cannot have, and draw what is drawn once."""

    def _check_divides(self) -> None:
        if self.units % self.size:
            raise DpsumError(
                f"{self.kind} participation needs a cohort that divides the"
                f" {self.units} units, not {self.size}"
            )

    def cohort(self, index: int) -> np.ndarray:
        """Numbers of the units of round `index` (from 0), the same whenever it is
        asked.
        """
        raise NotImplementedError

    @property
    def denominator(self) -> float:
        """The denominator of a round's sum: the expected cohort, never the realised
        one, which is private.
        """
        return float(self.size)

    def describe(self) -> Sampling:
        """The sampler, for the ledger; `rate` is a unit's chance of being in a given
        round.
        """
        rate = self.size / self.units
        return Sampling(
            kind=self.kind,
            clients=self.units,
            cohort=self.size,
            rounds=self.rounds,
            rate=rate,
        )


def check_name(participation: object) -> None:
    """Refuse a participation that bears the name of another way of drawing.

    An analysis is found by the name, so that its epsilon would be of other code.

    Args:
        participation: a `Participation`; any other object is not looked at.

    Raises:
        DpsumError: it draws or describes itself in its own way under a name of
            `dpsum.participation`.
    """
    names = {cls.kind: cls for cls in _all_below(Participation) if _is_ours(cls)}
    if not isinstance(participation, Participation) or participation.kind not in names:
        return
    cls = type(participation)
    named = names[participation.kind]
    for member in _DRAWN_BY:
        if getattr(cls, member) is not getattr(named, member):
            raise DpsumError(
                f"{cls.__module__}.{cls.__name__} has a {member} of its own, but the"
                f" kind {named.kind!r} of {named.__name__}, whose analysis is of"
                " another way of drawing: give it a kind of its own"
            )


def _all_below(cls: type[Participation]) -> list[type[Participation]]:
    subclasses = cls.__subclasses__()
    return subclasses + [
        descendant for subclass in subclasses for descendant in _all_below(subclass)
    ]


def _is_ours(cls: type[Participation]) -> bool:
    return cls.__module__ == __name__ and "kind" in vars(cls)


class OnePass(Participation):
    """Disjoint blocks of a shuffled list: no unit takes part twice. The blocks may be
    known to all.
    """

    kind = "one-pass"
    once = True
    known = True

    def _begin(self) -> None:
        if self.units % self.size or self.rounds > self.units // self.size:
            raise DpsumError(
                "one-pass participation needs a cohort that divides the units and at"
                f" most units/cohort rounds, not {self.rounds} rounds of {self.size} of"
                f" {self.units}"
            )
        self._order = stream(self.seed, "participation").permutation(self.units)

    def cohort(self, index: int) -> np.ndarray:
        return self._order[index * self.size : (index + 1) * self.size]


class BallsAndBins(Participation):
    """Each unit draws one secret round out of T (Chua et al., Balls-and-Bins Sampling
    for DP-SGD, 2024).

    Still one pass; the cohort's size varies and is private, and the denominator is N/T.
    """

    kind = "balls-and-bins"
    once = True

    def _begin(self) -> None:
        if self.size * self.rounds != self.units:
            raise DpsumError(
                "balls-and-bins participation needs cohort x rounds = units, not"
                f" {self.size} x {self.rounds} and {self.units}"
            )
        self._drawn = stream(self.seed, "participation").integers(
            self.rounds, size=self.units
        )

    def cohort(self, index: int) -> np.ndarray:
        return np.flatnonzero(self._drawn == index)

    @property
    def denominator(self) -> float:
        return self.units / self.rounds


class Poisson(Participation):
    """In each round each unit takes part with probability L/N, apart from all
    others.
    """

    kind = "poisson"

    def cohort(self, index: int) -> np.ndarray:
        drawn = stream(self.seed, "participation", index).random(self.units)
        return np.flatnonzero(drawn < self.size / self.units)


class Passes(Participation):
    """Blocks of a shuffled list; when it is at its end it is shuffled anew. No analysis
    is of it.
    """

    kind = "passes"

    def cohort(self, index: int) -> np.ndarray:
        number, block = divmod(index, self.units // self.size)
        order = stream(self.seed, "participation", number).permutation(self.units)
        return order[block * self.size : (block + 1) * self.size]


class ShuffledEpochs(Passes):
    """The same, for releases that are accounted for: a unit is in one block of each
    epoch, and which may be known.
    """

    kind = "shuffled-epochs"
    known = True

    def _begin(self) -> None:
        self._check_divides()

    def describe(self) -> Sampling:
        return dataclasses.replace(
            super().describe(), epoch=self.units // self.size, batches="known"
        )


class RepeatedPasses(Participation):
    """Blocks of a list that was shuffled once, gone through again and again: a unit
    comes each N/L rounds (b-min-sep).

    The blocks may be known to all. For a unit's rounds lie that far apart, correlated
    noise is accounted for, too.
    """

    kind = "min-separation"
    known = True

    def _begin(self) -> None:
        self._check_divides()
        self._order = stream(self.seed, "participation").permutation(self.units)

    def cohort(self, index: int) -> np.ndarray:
        start = index % self.separation * self.size
        return self._order[start : start + self.size]

    @property
    def separation(self) -> int:
        """Rounds from one participation of a unit to the next."""
        return self.units // self.size

    def describe(self) -> Sampling:
        most = max(-(-self.rounds // self.separation), 1)
        return dataclasses.replace(
            super().describe(), separation=self.separation, participations=most
        )


class FixedSize(Participation):
    """In each round L of the N units, every such set with the same chance: without
    replacement, drawn anew.
    """

    kind = "fixed-size"

    def cohort(self, index: int) -> np.ndarray:
        drawn = stream(self.seed, "participation", index).permutation(self.units)[
            : self.size
        ]
        return np.sort(drawn)


class Everyone(Participation):
    """Every unit takes part in every round, so that the cohort is all units.

    Everybody may know that. All releases together are one Gaussian release.
    """

    kind = "everyone"
    known = True

    def _begin(self) -> None:
        if self.size != self.units:
            raise DpsumError(
                f"participation.cohort is {self.size} of {self.units} units: where"
                " everyone takes part it is all of them"
            )

    def cohort(self, index: int) -> np.ndarray:
        return np.arange(self.units)


class PoissonLots:
    """Lots of each holder's own records: in each step each record is in its holder's
    lot with probability L/n.

    Abadi et al. 2016; Adap DP-FL, line 7. Where holders have different numbers of
    records, n is their mean: all records have one rate, so that one epsilon is every
    record's, and a holder's expected lot is in proportion to its records.

    Args:
        clients: K holders, of n `records` each, or of as many as it says one by one;
            `whose` they are, for messages.
        lot: L, the expected records of a lot, or of holders that differ their mean;
            each holder takes `steps` of them in each of T `rounds`.
        seed, kind: as of `Participation`.
        purpose: of the random stream that draws them.

    Raises:
        DpsumError: a lot that is not from 1 to n.
    """

    def __init__(
        self,
        *,
        clients: int = 1,
        lot: int,
        rounds: int,
        steps: int = 1,
        records: int | Sequence[int],
        seed: Seed = None,
        purpose: str = "lot",
        whose: str = "a client",
        kind: str = "poisson-lots",
    ) -> None:
        sizes = (
            [records] * clients
            if isinstance(records, int)
            else [int(size) for size in records]
        )
        self.alike = len(set(sizes)) == 1
        self.records = sum(sizes)
        if len(sizes) != clients or not clients <= lot * clients <= self.records:
            held = (
                f"{sizes[0]}"
                if self.alike
                else f"{self.records / clients:g} on average"
            )
            raise DpsumError(
                f"participation.cohort is {lot}, but {whose} holds {held} records: a"
                " lot must be from 1 to that"
            )
        self.kind = kind
        self.clients = clients
        self.size = lot
        self.rounds = rounds
        self.steps = steps
        self.seed = fresh(seed)
        self.sizes = sizes
        self.purpose = purpose
        self.rate = lot / sizes[0] if self.alike else lot * clients / self.records

    def lot(self, index: int, step: int = 0, client: int = 0) -> np.ndarray:
        """Places of the records of a lot among the holder's, ascending, the same
        whenever it is asked.
        """
        drawn = stream(self.seed, self.purpose, index, step, client).random(
            self.sizes[client]
        )
        return np.flatnonzero(drawn < self.rate)

    def expected(self, client: int) -> float:
        """The expected lot of one holder; of holders that are alike, the
        denominator.
        """
        return float(self.size) if self.alike else self.rate * self.sizes[client]

    @property
    def denominator(self) -> float:
        """The denominator of a lot's sum: the expected lot, never the realised one,
        which is private.
        """
        return float(self.size)

    def describe(self) -> Sampling:
        """The sampler, for the ledger; `rate` is a record's chance of being in a given
        lot, `rounds` counts lots.

        Of holders that differ, records and cohort are those of all of them together,
        and `sizes` says each one's.
        """
        whole, lot = (
            (self.sizes[0], self.size)
            if self.alike
            else (self.records, self.size * self.clients)
        )
        return Sampling(
            kind=self.kind,
            clients=self.clients,
            records=whole,
            cohort=lot,
            rounds=self.rounds * self.steps,
            rate=self.rate,
            others={} if self.alike else {"sizes": self.sizes},
        )


def own_records(
    *, clients: int, rounds: int, records: int, steps: int, batches: str
) -> Sampling:
    """The sampler of the sums that each client takes over its own records, for the
    ledger.

    Args:
        clients: N, who take part at most once.
        records: those of one client that its releases of this kind read.
        steps: releases of this kind that one client makes.
        batches: "full": each reads all of the records; "disjoint": each reads a part of
            its own; "poisson": each reads each record with the chance 1/steps, so that
            `cohort` is the mean number.
    """
    cohort = (
        records
        if batches == "full"
        else records / steps
        if batches == "poisson"
        else records // steps
    )
    kind = "own-records-poisson" if batches == "poisson" else "own-records"
    return Sampling(
        kind=kind,
        clients=clients,
        records=records,
        cohort=cohort,
        rounds=rounds,
        rate=cohort / records,
        steps=steps,
    )


def own_update(*, clients: int, cohort: int, rounds: int) -> Sampling:
    """The sampler of clients' own updates, one for each client at most, for the
    ledger.
    """
    return Sampling(
        kind="own-update",
        clients=clients,
        cohort=cohort,
        rounds=rounds,
        rate=1.0,
        steps=1,
    )
