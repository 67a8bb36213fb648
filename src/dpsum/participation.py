"""Participation: which units take part in which round, and the sum's denominator.

A participation draws the cohorts and also describes the sampler for the ledger
(`describe`). One object does both, so that the account is of the sampler that ran.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from dpsum.errors import DpsumError
from dpsum.lazy import np
from dpsum.parameters import check_bounds, parameter
from dpsum.randomness import Seed, fresh, stream
from dpsum.sampling import UNNAMED, Sampling

_DRAWN_BY = ("sample_cohort", "describe", "denominator")
"""Members that an analysis covers: the name of a sampler stands for all of them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation:
    """Base of the participations: which units take part in which round.

    The configuration states cohort and rounds. The number of units and the seed may
    follow later (`plan`); cohorts are drawn only when both are known.

    Args:
        cohort: L, the number of units of a round, or its expectation.
        rounds: T, the number of rounds.
        units: N, the number of units.
        seed: seed of the draws; None: from the operating system's entropy, so that
            nobody can repeat the draws.

    Attributes:
        kind: name of the sampler in the ledger. A class that draws in its own way has
            its own name, so that no analysis of another sampler is used.
        once: whether a unit takes part at most once.
        known: whether the analysis allows the observer to know who takes part when.
        independent: whether each unit is drawn in each round independently of all other
            units and rounds.
        blocks: whether cohorts are blocks of a list of all units, so that the cohort
            size must divide the number of units.
        correlated: whether there is an analysis with noise that is correlated over
            rounds.
        former_names: earlier name of each renamed parameter. The identity of a run of
            the benchmark has the earlier names, so that it stays.

    Raises:
        DpsumError: the numbers contradict one another.
    """

    kind: ClassVar[str] = ""
    once: ClassVar[bool] = False
    known: ClassVar[bool] = False
    independent: ClassVar[bool] = False
    blocks: ClassVar[bool] = False
    correlated: ClassVar[bool] = False
    former_names: ClassVar[Mapping[str, str]] = {}

    cohort: int = parameter(
        100,
        ge=1,
        le=10_000_000,
        doc="L: clients in a round, or their expected number",
        paper="1600",
    )
    rounds: int = parameter(
        20, ge=0, le=1_000_000, doc="T: number of rounds", paper="250"
    )
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
        """Return this participation with a number of clients and a seed."""
        return dataclasses.replace(self, units=clients, seed=seed)

    def sample_cohort(self, index: int) -> np.ndarray:
        """Return the numbers of the units in round `index` (from 0), int [cohort].

        Repeated calls return the same cohort.
        """
        raise NotImplementedError

    @property
    def denominator(self) -> float:
        """Denominator of a round's sum: the expected cohort size.

        The realised cohort size is private and never used.
        """
        return float(self.cohort)

    def describe(self) -> Sampling:
        """Return the sampler for the ledger.

        `rate` is a unit's probability of taking part in a given round.
        """
        return Sampling(
            kind=self.kind,
            clients=self._count,
            cohort=self.cohort,
            rounds=self.rounds,
            rate=self.cohort / self._count,
        )

    @property
    def draw(self) -> str | None:
        """Name of the draws in the ledger (`Sampling.draw`); None without a seed.

        It names the random stream, and does not reveal a seed of 128 random bits. A
        class of another package adds its own values, since `describe` may omit some.
        """
        if self.seed is None:
            return None
        name = draw_name(self.seed, "participation")
        cls = type(self)
        if cls.__module__ == __name__:
            return name
        values = [repr(getattr(self, field.name)) for field in dataclasses.fields(self)]
        return f"{name}/{_digest(cls.__module__, cls.__qualname__, *values)}"

    def clients_per_round(self, clients: int) -> int:
        """Return the number of clients in a round, or its expectation."""
        return self.cohort

    def apart(self, clients: int) -> tuple[int, int]:
        """Return the separation and the number of participations of one client.

        They are the least number of rounds between two of its participations, and the
        largest number of rounds in which it takes part.
        """
        rounds = max(self.rounds, 1)
        if self.once:
            return rounds, 1
        return 1, rounds

    @property
    def allows_client_state(self) -> bool:
        """Whether the account also covers clients that keep state between rounds.

        See docs/privacy.md, "Clients that remember".
        """
        return self.once or self.known or self.independent

    @property
    def _count(self) -> int:
        """Number of units."""
        if self.units is None:
            raise DpsumError(
                f"{self.kind} participation has no units yet: give units, or call plan()"
            )
        return self.units

    def _stream(self, *names: int) -> np.random.Generator:
        """Return the random stream of the draws."""
        if self.seed is None:
            raise DpsumError(
                f"{self.kind} participation has no seed yet: give units, or call plan()"
            )
        return stream(self.seed, "participation", *names)

    @functools.cached_property
    def _order(self) -> np.ndarray:
        """Numbers of all units, shuffled once for all rounds."""
        return self._stream().permutation(self._count)

    def _check_numbers(self, units: int) -> None:
        """Check the numbers of this participation."""
        if not 1 <= self.cohort <= units:
            raise DpsumError(
                f"participation.cohort is {self.cohort} of {units} units: it must be"
                " from 1 to their number"
            )
        if self.rounds < 0:
            raise DpsumError(
                f"participation.rounds is {self.rounds}: it must be at least 0"
            )


def draw_name(seed: int, purpose: str) -> str:
    """Return the name of the draws of a random stream; see `Sampling.draw`."""
    return _digest(str(int(seed)), purpose)


def _digest(*parts: str) -> str:
    """Return the first 16 digits of the SHA-256 of names."""
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:16]


class Cohorts(Participation):
    """Base of the participations that draw cohorts of clients and have an analysis."""


def check_name(participation: object) -> None:
    """Refuse a participation that uses the name of another sampler.

    The analysis is found by the name, so that its epsilon would be that of other code.

    Args:
        participation: a `Participation`; other objects are not checked.

    Raises:
        DpsumError: the class overrides how a sampler of `dpsum.participation` draws or
            describes itself, and keeps its name.
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
                f" kind {named.kind!r} of {named.__name__}, whose analysis covers"
                " other sampling: give it a kind of its own"
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
    """Disjoint blocks of a shuffled list: no client takes part twice.

    DP-FedMeta's one-pass training and DP-MAML use it. An observer may know the blocks:
    the analysis does not rely on the shuffle. Each client is in one Gaussian release.
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

    def sample_cohort(self, index: int) -> np.ndarray:
        start = index * self.cohort
        return self._order[start : start + self.cohort]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallsAndBins(Cohorts):
    """One pass in secret rounds: each client draws one of the T rounds.

    The cohort size varies and is private. The denominator is N/T. Chua et al.,
    Balls-and-Bins Sampling, 2024.
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
    """Poisson sampling: each client takes part in each round with probability L/N.

    All draws are independent.
    """

    kind = "poisson"
    independent = True

    def sample_cohort(self, index: int) -> np.ndarray:
        drawn = self._stream(index).random(self._count)
        return np.flatnonzero(drawn < self.cohort / self._count)


def _block_of_epoch(self: Participation, index: int) -> np.ndarray:
    """Return the units of a round where each epoch shuffles the list anew."""
    blocks = self._count // self.cohort
    epoch, block = divmod(index, blocks)
    order = self._stream(epoch).permutation(self._count)
    start = block * self.cohort
    return order[start : start + self.cohort]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes(Participation):
    """The blocks of shuffled epochs, for methods without privacy of a client.

    Li et al. 2020 count visits per task. There is no analysis: a private sum over these
    cohorts has no epsilon.
    """

    kind = "passes"
    blocks = True

    sample_cohort = _block_of_epoch


def _check_blocks(self: Participation, units: int) -> None:
    """Check the numbers, and that blocks of the cohort's size divide the units."""
    Participation._check_numbers(self, units)
    if units % self.cohort:
        raise DpsumError(
            f"{self.kind} participation needs a cohort that divides the"
            f" {units} units, not {self.cohort}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledEpochs(Cohorts):
    """Blocks of a list that is shuffled anew in each epoch.

    A client is in one block of each epoch. An observer may know the blocks: a client is
    in one Gaussian release for each epoch that was begun.
    """

    kind = "shuffled-epochs"
    known = True
    blocks = True

    _check_numbers = _check_blocks
    sample_cohort = _block_of_epoch

    def describe(self) -> Sampling:
        return dataclasses.replace(
            super().describe(), epoch=self._count // self.cohort, batches="known"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSeparation(Cohorts):
    """Blocks of a list that is shuffled once: a client takes part every N/L rounds.

    An observer may know the blocks. A client's rounds have a minimal separation
    (b-min-sep), so that the account of correlated noise covers all of them.
    """

    kind = "min-separation"
    known = True
    blocks = True
    correlated = True

    _check_numbers = _check_blocks

    def sample_cohort(self, index: int) -> np.ndarray:
        start = index % self.separation * self.cohort
        return self._order[start : start + self.cohort]

    @property
    def separation(self) -> int:
        """Number of rounds from one participation of a unit to the next."""
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
    """A uniformly random set of L of the N clients, drawn in secret anew each round.

    Most simulators sample in this way.
    """

    kind = "fixed-size"

    def sample_cohort(self, index: int) -> np.ndarray:
        order = self._stream(index).permutation(self._count)
        return np.sort(order[: self.cohort])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Everyone(Participation):
    """Every unit takes part in every round.

    The cohort is public. All releases together are one Gaussian release.
    """

    kind = "everyone"
    known = True

    def _check_numbers(self, units: int) -> None:
        super()._check_numbers(units)
        if self.cohort != units:
            raise DpsumError(
                f"participation.cohort is {self.cohort} of {units} units: if everyone"
                " takes part, it must equal the number of units"
            )

    def sample_cohort(self, index: int) -> np.ndarray:
        return np.arange(self._count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonLots(Participation):
    """Every client takes part in every round, with a Poisson lot of its own records.

    In each step each record is in its client's lot with probability L/n, independently
    of all others. Where clients hold different numbers of records, n is their mean.
    `lots` draws the lots.

    Args:
        lot: L, the expected number of records in a client's lot.
    """

    kind = "poisson-lots"
    former_names: ClassVar[Mapping[str, str]] = {"lot": "cohort"}

    # A class variable, so that `cohort` is no parameter here: L counts records.
    cohort: ClassVar[int] = property(lambda self: self.lot)  # type: ignore[assignment,misc]
    lot: int = parameter(
        100,
        ge=1,
        le=10_000_000,
        doc="L: expected number of records in a client's lot",
        paper="78 (Adap DP-FL)",
    )

    def _check_numbers(self, units: int) -> None:
        """Check nothing: `RecordLots` compares the lot with the clients' records."""

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
        holder_name: str = "a client",
    ) -> RecordLots:
        """Return the lots of all clients.

        Args:
            clients: K, the number of clients.
            seed: seed of the draws.
            steps: number of lots of one client in a round.
            records: number of records of each client, or one number for each client.
            purpose: purpose of the random stream of the draws.
            holder_name: name of the holder, for messages.
        """
        return RecordLots(
            kind=self.kind,
            clients=clients,
            lot=self.lot,
            rounds=self.rounds,
            steps=steps,
            seed=seed,
            records=records,
            purpose=purpose,
            holder_name=holder_name,
        )


class RecordLots:
    """Poisson lots of each holder's own records.

    In each step each record is in its holder's lot with probability L/n (Abadi et al.
    2016; Adap DP-FL, line 7). Where holders have different numbers of records, n is
    their mean. All records then have the same rate, so that one epsilon applies to
    every record, and a holder's expected lot is proportional to its records.

    Args:
        clients: K, the number of holders.
        lot: L, the expected number of records in a lot; the mean over holders where
            they have different numbers of records.
        rounds: T, the number of rounds.
        steps: number of lots of one holder in a round.
        records: n, the number of records of each holder, or one number for each holder.
        seed, kind: see `Participation`.
        purpose: purpose of the random stream of the draws.
        holder_name: name of the holder, for messages.

    Raises:
        DpsumError: the lot is not from 1 to n.
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
        holder_name: str = "a client",
        kind: str = "poisson-lots",
    ) -> None:
        if isinstance(records, int):
            sizes = [records] * clients
        else:
            sizes = [int(size) for size in records]
        self.alike = len(set(sizes)) == 1
        self.records = sum(sizes)
        fits = clients <= lot * clients <= self.records
        if len(sizes) != clients or not fits:
            if self.alike:
                held = f"{sizes[0]}"
            else:
                held = f"{self.records / clients:g} on average"
            raise DpsumError(
                f"participation.lot is {lot}, but {holder_name} holds {held}"
                f" records: a lot must have 1 to {held} records"
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
        """Return the indices of a lot's records among the holder's, ascending.

        Repeated calls return the same lot.
        """
        drawn = stream(self.seed, self.purpose, index, step, client).random(
            self.sizes[client]
        )
        return np.flatnonzero(drawn < self.rate)

    @property
    def draw(self) -> str:
        """Name of the draws in the ledger (`Sampling.draw`)."""
        name = draw_name(self.seed, self.purpose)
        if self.steps == 1:
            return name
        return f"{name}/{self.steps} steps"

    def expected_size(self, client: int) -> float:
        """Return the expected lot size of one holder.

        It is the denominator where all holders have the same number of records.
        """
        if self.alike:
            return float(self.size)
        return self.rate * self.sizes[client]

    @property
    def denominator(self) -> float:
        """Denominator of a lot's sum: the expected lot size.

        The realised lot size is private and never used.
        """
        return float(self.size)

    def describe(self) -> Sampling:
        """Return the sampler for the ledger.

        `rate` is a record's probability of being in a given lot; `rounds` counts lots.
        Where holders have different numbers of records, `records` and `cohort` are
        totals over all holders, and `sizes` has the number of each.
        """
        if self.alike:
            records = self.sizes[0]
            lot = self.size
            sizes = {}
        else:
            records = self.records
            lot = self.size * self.clients
            sizes = {"sizes": self.sizes}
        return Sampling(
            kind=self.kind,
            clients=self.clients,
            records=records,
            cohort=lot,
            rounds=self.rounds * self.steps,
            rate=self.rate,
            further_keys=sizes,
        )


@dataclasses.dataclass(frozen=True)
class UnitDraw:
    """Draw of the units of one sum.

    Attributes:
        sampler: the sampler, as in the ledger.
        steps: number of releases of one holder in a round.
        cohort: expected number of units of a release.
    """

    sampler: Sampling
    steps: int
    cohort: float

    @classmethod
    def of(cls, drawn_by: DrawnBy, name: str) -> UnitDraw:
        """Return how the units of the sum `name` are drawn.

        The draw of a sampler that does not name one has the name of the sum.

        Raises:
            DpsumError: a participation has the name of another sampler.
        """
        check_name(drawn_by)
        draw = None
        if isinstance(drawn_by, Mapping):
            sampler = Sampling.from_mapping(drawn_by)
            steps = 1
            cohort = float(drawn_by["cohort"])
        else:
            sampler = Sampling.from_mapping(drawn_by.describe())
            steps = getattr(drawn_by, "steps", 1)
            cohort = drawn_by.denominator
            draw = getattr(drawn_by, "draw", None)
        if sampler.draw is None:
            draw = draw or f"{UNNAMED}/{name}"
            sampler = dataclasses.replace(sampler, draw=draw)
        return cls(sampler, steps, cohort)


DrawnBy = Participation | RecordLots | Mapping[str, Any]
"""A participation, or a sampler whose units the caller draws."""


def within_task(
    *, clients: int, rounds: int, records: int, steps: int, batches: str
) -> Sampling:
    """Return the sampler of sums that each client takes over its own records.

    Args:
        clients: N, the number of clients; each takes part at most once.
        rounds: T, the number of rounds.
        records: number of records of one client that these releases read.
        steps: number of these releases that one client makes.
        batches: "full": each release reads all records; "disjoint": each reads a
            separate part; "poisson": each reads each record with probability 1/steps,
            so that `cohort` is the mean number.
    """
    kind = "within-task"
    cohort: float
    if batches == "full":
        cohort = records
    elif batches == "poisson":
        kind = "within-task-poisson"
        cohort = records / steps
    else:
        cohort = records // steps
    return Sampling(
        kind=kind,
        clients=clients,
        records=records,
        cohort=cohort,
        rounds=rounds,
        rate=cohort / records,
        steps=steps,
    )


def local(*, clients: int, cohort: int, rounds: int) -> Sampling:
    """Return the sampler of local updates: each client releases at most one."""
    return Sampling(
        kind="local",
        clients=clients,
        cohort=cohort,
        rounds=rounds,
        rate=1.0,
        steps=1,
    )
