"""What an analysis says of its sampler, and how a ledger is read for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from dpsum.accounting.gaussian import joint_multiplier
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler, Schedule
from dpsum.errors import DpsumError
from dpsum.ledger import Release

if TYPE_CHECKING:
    from dpsum.accounting.claims import Claim, Claims
    from dpsum.accounting.context import Budget
    from dpsum.accounting.filters import Filter


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """What an analysis reads of a ledger.

    Attributes:
        samplers: how the cohort of each name that was released was drawn.
        schedule: the noise of all releases; those of one round that read the same cohort as one Gaussian.
        claimed: the same of the releases that the method's paper counts.
        multipliers: of each round's releases as one.
        uncounted: names of the releases that the paper does not count.
    """

    samplers: Mapping[str, Sampler]
    schedule: Schedule
    claimed: Schedule
    multipliers: Sequence[float]
    uncounted: Sequence[str] = ()

    @property
    def sampler(self) -> Sampler:
        """The first's."""
        return next(iter(self.samplers.values()))


EPSILONS = np.append(0.0, np.geomspace(1e-3, 20.0, 160))
"""Where a trade-off curve is found: losses of every size, each one sixteenth from the next."""


class Deltas(NamedTuple):
    """A trade-off curve by its lines: at each epsilon >= 0 an upper end of delta, float64 [n].

    `present`: of a unit's presence against its absence; `absent`: the other way.
    """

    epsilons: np.ndarray
    present: np.ndarray
    absent: np.ndarray


class Contradiction(DpsumError):
    """Numbers of a sampler do not fit together; `why`, in words that name no ledger."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class Analysis:
    """One way to account for one mechanism under one kind of sampler.

    Attributes:
        mechanism: what the ledger calls the noise.
        sampler: the kind of sampler.
        adjacency: that its releases are for, and what it says of them.
        known: whether the observer may know who is in which release.
        shared_records: whether its records are examples that several simulated clients may hold.
        explanation: what it takes for granted, for people.
        images: the same of the image level; "{uses}" is the number of clients that use the worst image.
        own: whether its releases are those that few-shot clients make over their own examples.
        units: the key of its sampler that says how many units a cohort is drawn from: "clients" or "records".
    """

    mechanism: ClassVar[str] = "gaussian"
    sampler: ClassVar[str]
    adjacency: ClassVar[str] = "zero-out"
    known: ClassVar[bool] = False
    shared_records: ClassVar[bool] = False
    explanation: ClassVar[str]
    images: ClassVar[str] = ""
    own: ClassVar[bool] = False
    units: ClassVar[str] = "clients"

    def check_sampler(self, sampler: Sampler) -> None:
        """Refuse a sampler whose numbers contradict one another: an account would follow from whichever it reads.

        Args:
            sampler: as a ledger has it.

        Raises:
            DpsumError: says which numbers, and what they should be.
        """
        units = self.units_of(sampler)
        for key in dict.fromkeys(("clients", units, "cohort", "rounds", "rate")):
            if not isinstance(sampler.get(key), (int, float)) or not 0 < sampler[key] < math.inf:
                raise self.contradiction(sampler, f"{key} is not a number above 0")
        for key in dict.fromkeys(("clients", units, "rounds")):
            if sampler[key] != int(sampler[key]):
                raise self.contradiction(sampler, f"{key} is not a whole number")
        if sampler["cohort"] > sampler[units]:
            raise self.contradiction(sampler, f"cohort is more than the {sampler[units]:,} {units}")
        self.check_rate(sampler)

    def check_rate(self, sampler: Sampler) -> None:
        """What has to hold between a sampler's numbers: here the rate is the cohort's share; see `check_sampler`."""
        units = self.units_of(sampler)
        share = sampler["cohort"] / sampler[units]
        if not math.isclose(sampler["rate"], share, rel_tol=1e-12):
            said = f"{sampler['cohort']:,} of {sampler[units]:,} {units} is a rate of {share:.6g}"
            raise self.contradiction(sampler, said)

    def units_of(self, sampler: Sampler) -> str:
        """The key of a sampler that says how many units a cohort is drawn from."""
        return self.units

    def contradiction(self, sampler: Sampler, why: str) -> DpsumError:
        """The refusal of a sampler."""
        said = ", ".join(f"{key} {value}" for key, value in sampler.items() if key != "kind")
        return Contradiction(
            f"the ledger's sampler {self.sampler} says {said}, which do not fit together: {why}; "
            "delete the run's folder and train again",
            why,
        )

    def bracket(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        """Proved ends of epsilon: the low one below, the high one above the exact value."""
        raise NotImplementedError

    def high(self, schedule: Schedule, sampler: Sampler, delta: float) -> float:
        """The high end alone, which is much cheaper where the low end takes a finer grid."""
        return self.bracket(schedule, sampler, delta)[1]

    def deltas(self, schedule: Schedule, sampler: Sampler) -> Deltas:
        """The whole trade-off curve, from above: for the audit. By `high` it takes many searches, and has few lines."""
        found = np.concatenate([np.geomspace(1e-7, 1e-2, 6), np.geomspace(2e-2, 0.9, 12)])
        return Deltas(np.array([self.high(schedule, sampler, float(delta)) for delta in found]), found, found)

    def renyi(self, schedule: Schedule, sampler: Sampler, orders: Sequence[int]) -> np.ndarray:
        """Upper ends of the Renyi divergence of the whole schedule, at each order."""
        raise NotImplementedError

    def as_one(self, schedule: Schedule, sampler: Sampler) -> float | None:
        """The multiplier of the one Gaussian that all releases are for one unit; None where they are no such thing."""
        return None

    def replaced(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket | None:
        """Both ends where the unit's contribution becomes any other; None where it is zeroed and put back for that.

        For an analysis of zero-out that has one of replace-one beside it.
        """
        return None

    def ends_of(self, reading: Reading, delta: float) -> Bracket:
        """`bracket` of a ledger, for an analysis that reads more of it than z of each round."""
        return self.bracket(reading.schedule, reading.sampler, delta)

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        """Both ends for the worst image, all clients that use it contributing zero, from z of each round.

        Raises:
            DpsumError: there is no such analysis.
        """
        raise DpsumError(f"no image-level analysis for the sampler {self.sampler!r}")

    def image_ends(self, reading: Reading, use: ImageUse, delta: float) -> Bracket:
        """`image_bracket` of a ledger, for an analysis that reads more of it than z of each round."""
        return self.image_bracket(use, reading.multipliers, reading.sampler, delta)

    def read(self, releases: Sequence[Release]) -> Reading:
        """A ledger of this mechanism and sampler.

        Raises:
            DpsumError: rounds are missing, doubled or out of order, samplers differ, their numbers contradict one
                another, or noise does not fit z and C.
        """
        rounds = rounds_of(releases, self.adjacency)
        self.check_sampler(releases[0].sampler)
        return Reading(
            samplers={event.name: event.sampler for event in rounds[0]},
            schedule=schedule_of(rounds),
            claimed=schedule_of([[event for event in events if event.counted_by_paper] for events in rounds]),
            multipliers=[joint_multiplier([event.noise_multiplier for event in events]) for events in rounds],
            uncounted=sorted({event.name for event in releases if not event.counted_by_paper}),
        )

    def sampler_of(self, releases: Sequence[Release]) -> Sampler:
        """What `high` and the like take for a ledger's sampler."""
        return releases[0].sampler

    def explain(self, reading: Reading) -> str:
        """What the bracket of a ledger takes for granted."""
        return self.explanation

    def claimed(self, claim: Claim, reading: Reading, delta: float) -> tuple[float, str, str]:
        """Epsilon as a paper claims it, status and explanation."""
        status, text = claim.statement(reading.sampler)
        others = claim.read_otherwise(reading.claimed, reading.sampler, delta)
        return claim.epsilon(reading.claimed, reading.sampler, delta), status, text + others

    def filter_of(self, reading: Reading, budget: Budget, claims: Claims) -> Filter | None:
        """The filter that the budget was of noise that may follow a loss, if the ledger is within it."""
        return None

    def floor_of(self, reading: Reading, fall: tuple[float, int]) -> Schedule | None:
        """The least noise that each planned round can have had by the declared rule, if the ledger kept to it."""
        return None


def schedule_of(rounds: Sequence[Sequence[Release]]) -> Schedule:
    """(z, rounds at it), ... in order; releases of one round as one Gaussian."""
    found: dict[float, int] = {}
    for events in rounds:
        parts = [event.noise_multiplier for event in events]
        z = parts[0] if len(parts) == 1 else joint_multiplier(parts)
        found[z] = found.get(z, 0) + 1
    return tuple(found.items())


def rounds_of(releases: Sequence[Release], adjacency: str = "zero-out") -> list[list[Release]]:
    """The releases round by round, after checking that the ledger is one mechanism's.

    Raises:
        DpsumError: rounds are missing, doubled or out of order, samplers differ, or noise does not fit z and C.
    """
    first, rounds = releases[0], list[list[Release]]()
    for number, event in enumerate(releases):
        where = f"the ledger's release {number}"
        _check_release(event, first, where, adjacency)
        if event.round == len(rounds):
            rounds.append([event])
        elif rounds and event.round == len(rounds) - 1 and event.name not in {known.name for known in rounds[-1]}:
            rounds[-1].append(event)
        else:
            raise DpsumError(f"{where} is of round {event.round}: delete the run's folder and train again")
    if len({frozenset(event.name for event in events) for events in rounds}) > 1:
        raise DpsumError("the ledger's rounds differ in what they released: delete the run's folder and train again")
    if len(rounds) > first.sampler["rounds"]:
        raise DpsumError(f"the ledger has {len(rounds)} rounds, its sampler plans {first.sampler['rounds']}")
    return rounds


def _check_release(event: Release, first: Release, where: str, adjacency: str) -> None:
    if any(getattr(event, name) != getattr(first, name) for name in ("sampler", "unit", "adjacency", "mechanism")):
        raise DpsumError(
            f"{where} has another sampler, unit, adjacency or mechanism than the first: account for them apart"
        )
    if event.adds is not None and event.adds > (clients := event.sampler.get("clients", 1)):
        raise DpsumError(
            f"{where} is added up with those of {event.adds} clients, but its sampler has {clients}: "
            "its mechanism is not the one accounted for"
        )
    if event.adjacency != adjacency:
        raise DpsumError(f"{where} is for {event.adjacency} adjacency: its sampler's analysis is for {adjacency}")
    z = event.noise_multiplier
    parts = (event.threshold, event.sensitivity, event.noise_std)
    each = (value if isinstance(value, list) else [value] for value in parts)
    for threshold, sensitivity, noise_std in zip(*each, strict=True):
        if not (0 < z < math.inf and 0 < threshold < math.inf):
            raise DpsumError(f"{where} has z {z} and C {threshold}: both must be above 0")
        if sensitivity < threshold:
            raise DpsumError(
                f"{where} declares sensitivity {sensitivity}, less than its threshold {threshold}: "
                "its mechanism is not the one accounted for"
            )
        if not math.isclose(noise_std, z * sensitivity, rel_tol=1e-12):
            raise DpsumError(
                f"{where} has noise of deviation {noise_std}, not z x sensitivity = "
                f"{z * sensitivity}: its mechanism is not the one accounted for"
            )
