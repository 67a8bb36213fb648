"""What an analysis says of its sampler, and how a ledger is read for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpfedbench.accounting.gaussian import joint_multiplier
from dpfedbench.accounting.groups import group_epsilon
from dpfedbench.accounting.image_level import ImageUse
from dpfedbench.accounting.schedule import Bracket, Sampler, Schedule
from dpfedbench.errors import BenchError
from dpfedbench.privacy.ledger import Release

if TYPE_CHECKING:
    from dpfedbench.accounting.claims import Claim, Claims
    from dpfedbench.accounting.context import Budget
    from dpfedbench.accounting.filters import Filter


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """What an analysis reads of a ledger.

    Attributes:
        unit: whom the releases protect.
        sampler: how the first release's cohort was drawn.
        samplers: the same of each name that was released.
        schedule: the noise of all releases; those of one round that read the same cohort as one Gaussian.
        claimed: the same of the releases that the method's paper counts.
        multipliers: of each round's releases as one.
        uncounted: names of the releases that the paper does not count.
    """

    unit: str
    sampler: Sampler
    samplers: Mapping[str, Sampler]
    schedule: Schedule
    claimed: Schedule
    multipliers: Sequence[float]
    uncounted: Sequence[str]


class Analysis:
    """One way to account for one mechanism under one kind of sampler, for zero-out adjacency.

    Attributes:
        mechanism: what the ledger calls the noise.
        sampler: the kind of sampler.
        known: whether the observer may know who is in which release.
        shared_records: whether its records are examples that several simulated clients may hold.
        explanation: what it takes for granted, for people.
    """

    mechanism: ClassVar[str] = "gaussian"
    sampler: ClassVar[str]
    known: ClassVar[bool] = False
    shared_records: ClassVar[bool] = False
    explanation: ClassVar[str]

    def bracket(self, schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
        """Proved ends of epsilon: the low one below, the high one above the exact value."""
        raise NotImplementedError

    def high(self, schedule: Schedule, sampler: Sampler, delta: float) -> float:
        """The high end alone, which is much cheaper where the low end takes a finer grid."""
        raise NotImplementedError

    def renyi(self, schedule: Schedule, sampler: Sampler, orders: Sequence[int]) -> np.ndarray:
        """Upper ends of the Renyi divergence of the whole schedule, at each order."""
        raise NotImplementedError

    def searched(self, schedule: Schedule, runs: int, delta: float) -> float | None:
        """Epsilon of so many runs together, where one Gaussian says it exactly; else None."""
        return None

    def image_bracket(
        self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float
    ) -> tuple[Bracket, str]:
        """Both ends for the worst image, all clients that use it contributing zero; and what that takes for granted.

        Args:
            use: which clients use which image.
            multipliers: z of each round that was run.
            sampler: the participation plan's description.
            delta: in (0, 1).

        Raises:
            BenchError: there is no such analysis.
        """
        raise BenchError(f"no image-level analysis for the sampler {self.sampler!r}")

    def replace_one(
        self, reading: Reading, holds: Bracket, delta: float, high_at: Callable[[float], float]
    ) -> tuple[Bracket, str]:
        """Both ends where the unit's contribution becomes any other; and how.

        Args:
            reading: of the ledger.
            holds: both ends for zero-out.
            delta: in (0, 1).
            high_at: delta to the high end for zero-out.
        """
        high = max(holds[0], group_epsilon(high_at, 2, delta))
        return (holds[0], high), "the high end zeroes the unit and then puts another in its place"

    # Reading a ledger

    def read(self, releases: Sequence[Release]) -> Reading:
        """A ledger of this mechanism and sampler.

        Raises:
            BenchError: rounds are missing, doubled or out of order, samplers differ, or noise does not fit z and C.
        """
        rounds = rounds_of(releases)
        first = releases[0]
        return Reading(
            unit=first.unit,
            sampler=first.sampler,
            samplers={first.name: first.sampler},
            schedule=schedule_of(rounds),
            claimed=schedule_of([[event for event in events if event.counted_by_paper] for events in rounds]),
            multipliers=[joint_multiplier([event.noise_multiplier for event in events]) for events in rounds],
            uncounted=sorted({event.name for event in releases if not event.counted_by_paper}),
        )

    def explain(self, reading: Reading) -> str:
        """What the bracket of a ledger takes for granted."""
        return self.explanation

    def claimed(self, claim: Claim, reading: Reading, delta: float) -> tuple[float, str, str]:
        """Epsilon as a paper claims it, status and explanation."""
        return claim.epsilon(reading.claimed, reading.sampler, delta), *claim.statement(reading.sampler)

    def image_level(self, reading: Reading, holds: Bracket, use: ImageUse, delta: float) -> tuple[Bracket, str]:
        """Both ends for the worst image of a partition, and how."""
        both, text = self.image_bracket(use, reading.multipliers, reading.sampler, delta)
        return both, f"every client that uses the image contributes zero; {text}"

    # Noise that was free to follow a public loss

    def filter_of(self, reading: Reading, budget: Budget, claims: Claims) -> Filter | None:
        """The filter that a run's budget was, if the ledger is within it; None where that proves nothing."""
        return None

    def floor_of(self, reading: Reading, fall: tuple[float, int]) -> Schedule | None:
        """The least noise that each planned round can have had by the declared rule; None where that proves nothing."""
        return None


def schedule_of(rounds: Sequence[Sequence[Release]]) -> Schedule:
    """(z, rounds at it), ... in order; releases of one round as one Gaussian."""
    found: dict[float, int] = {}
    for events in rounds:
        parts = [event.noise_multiplier for event in events]
        z = parts[0] if len(parts) == 1 else joint_multiplier(parts)
        found[z] = found.get(z, 0) + 1
    return tuple(found.items())


def rounds_of(releases: Sequence[Release]) -> list[list[Release]]:
    """The releases round by round, after checking that the ledger is one mechanism's.

    Raises:
        BenchError: rounds are missing, doubled or out of order, samplers differ, or noise does not fit z and C.
    """
    first, rounds = releases[0], list[list[Release]]()
    for number, event in enumerate(releases):
        where = f"the ledger's release {number}"
        _check_release(event, first, where)
        if event.round == len(rounds):
            rounds.append([event])
        elif rounds and event.round == len(rounds) - 1 and event.name not in {known.name for known in rounds[-1]}:
            rounds[-1].append(event)
        else:
            raise BenchError(f"{where} is of round {event.round}: delete the run's folder and train again")
    if len({frozenset(event.name for event in events) for events in rounds}) > 1:
        raise BenchError("the ledger's rounds differ in what they released: delete the run's folder and train again")
    if len(rounds) > first.sampler["rounds"]:
        raise BenchError(f"the ledger has {len(rounds)} rounds, its sampler plans {first.sampler['rounds']}")
    return rounds


def _check_release(event: Release, first: Release, where: str) -> None:
    if any(getattr(event, name) != getattr(first, name) for name in ("sampler", "unit", "adjacency", "mechanism")):
        raise BenchError(
            f"{where} has another sampler, unit, adjacency or mechanism than the first: account for them apart"
        )
    if event.adjacency != "zero-out":
        raise BenchError(f"{where} is for {event.adjacency} adjacency: the analyses here are for zero-out")
    z = event.noise_multiplier
    parts = (event.threshold, event.sensitivity, event.noise_std)
    each = (value if isinstance(value, list) else [value] for value in parts)
    for threshold, sensitivity, noise_std in zip(*each, strict=True):
        if not (0 < z < math.inf and 0 < threshold < math.inf):
            raise BenchError(f"{where} has z {z} and C {threshold}: both must be above 0")
        if sensitivity < threshold:
            raise BenchError(
                f"{where} declares sensitivity {sensitivity}, less than its threshold {threshold}: "
                "its mechanism is not the one accounted for"
            )
        if not math.isclose(noise_std, z * sensitivity, rel_tol=1e-12):
            raise BenchError(
                f"{where} has noise of deviation {noise_std}, not z x sensitivity = "
                f"{z * sensitivity}: its mechanism is not the one accounted for"
            )
