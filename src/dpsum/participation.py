"""Ways of participation: which units take part in which round, and by what number a
round's sum may be divided.

A way describes itself for the ledger (`describe`), so that the sampler that ran and the
one that is accounted for are the same object's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar, Self

from dpsum.errors import DpsumError
from dpsum.lazy import np
from dpsum.parameters import check_bounds, parameter
from dpsum.randomness import Seed, fresh, stream
from dpsum.sampling import Sampling

_DRAWN_BY = ("sample_cohort", "describe", "denominator")
"""Members that an analysis is of: the name of a sampler stands for all of them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation:
    """Base: which units take part in which round.

    Cohort and rounds are parameters that a configuration states. The number of units and
    the seed may be given later (`plan`); cohorts are drawn only when both are known.

    Args:
        cohort: L, the units of a round, or their expected number.
        rounds: T.
        units: N.
        seed: of the draws; None: from the operating system's entropy, so that no one
            can draw the same.

    Attributes:
        kind: the sampler's name in the ledger. A class that draws in its own way gives
            its own name, for which no analysis of another is taken.
        once: whether a unit takes part at most once.
        known: whether an observer may know who takes part when.
        independent: whether each unit draws each of its rounds independently of all
            others and of all other rounds.
        blocks: whether cohorts are blocks of all units, so that their size has to
            divide the number of units.
        correlated: whether noise that is correlated over rounds has an analysis for it.

    Raises:
        DpsumError: numbers that contradict one another.
    """

    kind: ClassVar[str] = ""
    once: ClassVar[bool] = False
    known: ClassVar[bool] = False
    independent: ClassVar[bool] = False
    blocks: ClassVar[bool] = False
    correlated: ClassVar[bool] = False

    cohort: int = parameter(
        100,
        ge=1,
        le=10_000_000,
        doc="clients of a round, L; the expected number where it is random",
        paper="1600",
    )
    rounds: int = parameter(20, ge=0, le=1_000_000, doc="rounds, T", paper="250")
    units: int | None = None
    seed: Seed = None

    def __post_init__(self) -> None:
        """Check the numbers, and fix the seed of the draws."""
        if self.units is None:
            check_bounds(self)
            return
        self._check_numbers(self.units)
        object.__setattr__(self, "seed", fresh(self.seed))

    def plan(self, *, clients: int, seed: Seed) -> Self:
        """Return this participation of so many clients, with the seed of its draws."""
        return dataclasses.replace(self, units=clients, seed=seed)

    def sample_cohort(self, index: int) -> np.ndarray:
        """Return the numbers of the units of round `index` (from 0), int [cohort].

        The same round has the same cohort whenever it is asked for.
        """
        raise NotImplementedError

    @property
    def denominator(self) -> float:
        """The denominator of a round's sum: the expected cohort, never the realised
        one, which is private.
        """
        return float(self.cohort)

    def describe(self) -> Sampling:
        """Return the sampler for the ledger; `rate` is a unit's chance of being in a
        given round.
        """
        return Sampling(
            kind=self.kind,
            clients=self._count,
            cohort=self.cohort,
            rounds=self.rounds,
            rate=self.cohort / self._count,
        )

    def clients_per_round(self, clients: int) -> int:
        """Return the clients of a round, or their expected number."""
        return self.cohort

    def apart(self, clients: int) -> tuple[int, int]:
        """Return the least number of rounds between two rounds of one client, and the
        most rounds that it is in.
        """
        rounds = max(self.rounds, 1)
        if self.once:
            return rounds, 1
        return 1, rounds

    @property
    def allows_client_state(self) -> bool:
        """Whether its account holds where a client's contribution also follows from the
        rounds that it was in before (docs/privacy.md, "Clients that remember").
        """
        return self.once or self.known or self.independent

    @property
    def _count(self) -> int:
        """The number of units."""
        if self.units is None:
            raise DpsumError(
                f"{self.kind} participation has no units yet: give units, or call plan()"
            )
        return self.units

    def _stream(self, *names: int) -> np.random.Generator:
        """Return the stream of random numbers that these draws come from."""
        if self.seed is None:
            raise DpsumError(
                f"{self.kind} participation has no seed yet: give units, or call plan()"
            )
        return stream(self.seed, "participation", *names)

    def _check_numbers(self, units: int) -> None:
        """Refuse numbers that this way of participation cannot have."""
        if not 1 <= self.cohort <= units:
            raise DpsumError(
                f"participation.cohort is {self.cohort} of {units} units: it must be"
                " from 1 to their number"
            )
        if self.rounds < 0:
            raise DpsumError(
                f"participation.rounds is {self.rounds}: it must be at least 0"
            )

    def _check_divides(self, units: int) -> None:
        if units % self.cohort:
            raise DpsumError(
                f"{self.kind} participation needs a cohort that divides the"
                f" {units} units, not {self.cohort}"
            )


class Cohorts(Participation):
    """Base of the ways to draw cohorts of clients that have an analysis."""


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnePass(Cohorts):
    """Disjoint blocks of a shuffled list: no client takes part twice (DP-FedMeta's
    one-pass training; DP-MAML).

    An observer may know the blocks: the analysis does not count on the shuffle. Then
    each client is in one Gaussian release.
    """

    kind = "one-pass"
    once = True
    known = True
    blocks = True
    correlated = True

    def _check_numbers(self, units: int) -> None:
        super()._check_numbers(units)
        if units % self.cohort or self.rounds > units // self.cohort:
            raise DpsumError(
                "one-pass participation needs a cohort that divides the units and at"
                f" most units/cohort rounds, not {self.rounds} rounds of {self.cohort}"
                f" of {units}"
            )

    @functools.cached_property
    def _order(self) -> np.ndarray:
        return self._stream().permutation(self._count)

    def sample_cohort(self, index: int) -> np.ndarray:
        start = index * self.cohort
        return self._order[start : start + self.cohort]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallsAndBins(Cohorts):
    """One pass in secret rounds: each client draws one out of T (Chua et al.,
    Balls-and-Bins Sampling, 2024).

    The cohort's size varies and is private, and the denominator is N/T.
    """

    kind = "balls-and-bins"
    once = True
    blocks = True
    correlated = True

    def _check_numbers(self, units: int) -> None:
        super()._check_numbers(units)
        if self.cohort * self.rounds != units:
            raise DpsumError(
                "balls-and-bins participation needs cohort x rounds = units, not"
                f" {self.cohort} x {self.rounds} and {units}"
            )

    @functools.cached_property
    def _round_of_unit(self) -> np.ndarray:
        return self._stream().integers(self.rounds, size=self._count)

    def sample_cohort(self, index: int) -> np.ndarray:
        return np.flatnonzero(self._round_of_unit == index)

    @property
    def denominator(self) -> float:
        return self._count / self.rounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson(Cohorts):
    """In each round each client takes part with probability L/N, independently of all
    others.
    """

    kind = "poisson"
    independent = True

    def sample_cohort(self, index: int) -> np.ndarray:
        drawn = self._stream(index).random(self._count)
        return np.flatnonzero(drawn < self.cohort / self._count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes(Participation):
    """Blocks as of shuffled epochs, for methods that claim nothing of a client (Li et
    al. 2020: visits per task).

    There is no analysis for it: of a private sum over it no epsilon is printed.
    """

    kind = "passes"
    blocks = True

    def sample_cohort(self, index: int) -> np.ndarray:
        return _block_of_epoch(self, index)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledEpochs(Cohorts):
    """Blocks of a shuffled list; when it is at its end it is shuffled anew. A client is
    in one block of each epoch.

    An observer may know the blocks: a client is in as many Gaussian releases as epochs
    were begun.
    """

    kind = "shuffled-epochs"
    known = True
    blocks = True

    def _check_numbers(self, units: int) -> None:
        super()._check_numbers(units)
        self._check_divides(units)

    def sample_cohort(self, index: int) -> np.ndarray:
        return _block_of_epoch(self, index)

    def describe(self) -> Sampling:
        return dataclasses.replace(
            super().describe(), epoch=self._count // self.cohort, batches="known"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSeparation(Cohorts):
    """Blocks of a list that was shuffled once, gone through again and again: a client
    comes each N/L rounds.

    An observer may know the blocks. A client's rounds lie apart (b-min-sep), so that
    correlated noise is accounted for over all of them.
    """

    kind = "min-separation"
    known = True
    blocks = True
    correlated = True

    def _check_numbers(self, units: int) -> None:
        super()._check_numbers(units)
        self._check_divides(units)

    @functools.cached_property
    def _order(self) -> np.ndarray:
        return self._stream().permutation(self._count)

    def sample_cohort(self, index: int) -> np.ndarray:
        start = index % self.separation * self.cohort
        return self._order[start : start + self.cohort]

    @property
    def separation(self) -> int:
        """Rounds from one participation of a unit to the next."""
        return self._count // self.cohort

    def apart(self, clients: int) -> tuple[int, int]:
        separation = max(clients // self.cohort, 1)
        most = -(-self.rounds // separation)
        return separation, max(most, 1)

    def describe(self) -> Sampling:
        separation, participations = self.apart(self._count)
        return dataclasses.replace(
            super().describe(), separation=separation, participations=participations
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSize(Cohorts):
    """In each round L of the N clients, every such set with the same chance, drawn anew
    and in secret.

    Most simulators draw so.
    """

    kind = "fixed-size"

    def sample_cohort(self, index: int) -> np.ndarray:
        order = self._stream(index).permutation(self._count)
        return np.sort(order[: self.cohort])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Everyone(Participation):
    """Every unit takes part in every round, so that the cohort is all units.

    Everybody may know that. All releases together are one Gaussian release.
    """

    kind = "everyone"
    known = True

    def _check_numbers(self, units: int) -> None:
        super()._check_numbers(units)
        if self.cohort != units:
            raise DpsumError(
                f"participation.cohort is {self.cohort} of {units} units: where"
                " everyone takes part it is all of them"
            )

    def sample_cohort(self, index: int) -> np.ndarray:
        return np.arange(self._count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonLots(Participation):
    """Every client takes part in every round, each time with a Poisson lot of its own
    records.

    In each step each record is in its client's lot with probability L/n, independently
    of all others; n is the mean over clients where they hold different numbers of
    records. `lots` draws them.
    """

    kind = "poisson-lots"

    cohort: int = parameter(
        100,
        ge=1,
        le=10_000_000,
        doc="expected records of a client's lot, L",
        paper="78 (Adap DP-FL)",
    )

    def _check_numbers(self, units: int) -> None:
        """A lot is compared with the records of a client when these are known."""

    def sample_cohort(self, index: int) -> np.ndarray:
        return np.arange(self._count)

    @property
    def denominator(self) -> float:
        return float(self._count)

    def describe(self) -> Sampling:
        sampling = super().describe()
        return dataclasses.replace(sampling, cohort=self._count, rate=1.0)

    def clients_per_round(self, clients: int) -> int:
        return clients

    def lots(
        self,
        *,
        clients: int,
        seed: Seed,
        steps: int,
        records: int | Sequence[int],
        purpose: str = "lot",
        whose: str = "a client",
    ) -> RecordLots:
        """Return the lots of clients that take so many steps a round.

        Args:
            clients: K.
            seed: of the draws.
            steps: lots of one client in a round.
            records: those that each client holds, or as many as it says one by one.
            purpose: of the random stream that draws them.
            whose: the holder, for messages.
        """
        return RecordLots(
            kind=self.kind,
            clients=clients,
            lot=self.cohort,
            rounds=self.rounds,
            steps=steps,
            seed=seed,
            records=records,
            purpose=purpose,
            whose=whose,
        )


def _block_of_epoch(plan: Participation, index: int) -> np.ndarray:
    """Return the units of a round where a list is shuffled anew at its end."""
    blocks = plan._count // plan.cohort
    epoch, block = divmod(index, blocks)
    order = plan._stream(epoch).permutation(plan._count)
    start = block * plan.cohort
    return order[start : start + plan.cohort]


class RecordLots:
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
        if isinstance(records, int):
            sizes = [records] * clients
        else:
            sizes = [int(size) for size in records]
        self.alike = len(set(sizes)) == 1
        self.records = sum(sizes)
        if len(sizes) != clients or not clients <= lot * clients <= self.records:
            if self.alike:
                held = f"{sizes[0]}"
            else:
                held = f"{self.records / clients:g} on average"
            raise DpsumError(
                f"participation.cohort is {lot}, but {whose} holds {held} records: a"
                " lot must be from 1 to that"
            )
        self.kind = kind
        self.clients = clients
        self.size = lot
        self.rounds = rounds
        self.steps = steps
        self.seed: int = fresh(seed)
        self.sizes = sizes
        self.purpose = purpose
        if self.alike:
            self.rate = lot / sizes[0]
        else:
            self.rate = lot * clients / self.records

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
        if self.alike:
            return float(self.size)
        return self.rate * self.sizes[client]

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
