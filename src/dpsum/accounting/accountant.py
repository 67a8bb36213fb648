"""Base of the accountants: one for each pair of a mechanism and a sampler.

The package `analyses` finds them. An accountant reads the lines of a ledger (`read`)
and returns proven ends of epsilon for one unit (`bracket`), and an upper bound on the
whole trade-off curve (`curve`). Further analyses are optional.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dploss.compositions import LEAST_GRID_DELTA, LEAST_USUAL_DELTA
from dploss.gaussian import (
    Bracket,
    Schedule,
    ends,
    exact_bracket,
    gaussian_deltas,
    grouped,
    joint_multiplier,
    joint_of,
    joint_or_only,
)
from dpsum.accounting.image_level import ImageUse
from dpsum.errors import DpsumError
from dpsum.ledger import Release
from dpsum.sampling import Sampler, Sampling

EPSILONS = np.append(0.0, np.geomspace(1e-3, 20.0, 160))
"""Epsilons at which a trade-off curve is computed: 0, and a geometric grid."""

REACH = {"zero-out": 1.0, "replace-one": 2.0}
"""Largest distance by which a unit of norm C moves a sum, over C, by adjacency."""

MEND = "delete the run's folder and train again"


class Curve(NamedTuple):
    """A trade-off curve: at each epsilon >= 0 an upper bound on delta, float64 [n].

    Attributes:
        epsilons: the epsilons.
        present: delta of a unit's presence against its absence.
        absent: delta of its absence against its presence.
    """

    epsilons: np.ndarray
    present: np.ndarray
    absent: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Events:
    """Releases in the form for an accountant, read from a ledger or planned.

    Attributes:
        schedule: the noise of all releases; releases of one round over the same cohort
            count as one Gaussian.
        samplings: how the cohort was drawn, by name of the release.
        multipliers: noise multiplier of each round, with its releases as one.
        claimed: noise and sampler of the releases that the method's paper counts; of
            several the worst is claimed.
        uncounted: names of the releases that the paper does not count.
        details: further data that an accountant reads for itself; None for planned
            rounds.
    """

    schedule: Schedule
    samplings: Mapping[str, Sampling]
    multipliers: Sequence[float] = ()
    claimed: Sequence[tuple[Schedule, Sampling]] = ()
    uncounted: Sequence[str] = ()
    details: Any = None

    @classmethod
    def planned(cls, schedule: Schedule, sampling: Sampler) -> Events:
        """Return the events of planned rounds of independent noise, without a ledger."""
        sampling_numbers = Sampling.from_mapping(sampling)
        multipliers = [z for z, count in schedule for _ in range(count)]
        return cls(
            schedule=schedule,
            samplings={"": sampling_numbers},
            multipliers=multipliers,
            claimed=((schedule, sampling_numbers),),
        )

    @property
    def sampling(self) -> Sampling:
        """Sampler of the first name."""
        return next(iter(self.samplings.values()))

    @property
    def rate(self) -> float:
        """Sampling rate: a unit's probability of being in a given round."""
        return float(self.sampling["rate"])

    @property
    def planned_rounds(self) -> int:
        """Number of rounds that are planned for the whole run."""
        return int(self.sampling["rounds"])

    @property
    def ends(self) -> tuple[float, float, int]:
        """Least and greatest noise multiplier, and number of rounds."""
        return ends(self.schedule)

    def of_noise(self, schedule: Schedule) -> Events:
        """Return the same releases with other noise, without details."""
        return dataclasses.replace(self, schedule=schedule, details=None)


class Contradiction(DpsumError):
    """Error of a sampler whose numbers contradict one another.

    Attributes:
        why: the contradiction, without the name of a ledger.
    """

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class Accountant:
    """Accountant of one mechanism with one sampler.

    A subclass names its `pair` and defines `bracket`, or `gaussian` where all releases
    are one Gaussian for a unit. The other methods follow from these. A subclass
    overrides them where its own analysis is tighter or faster.

    Attributes:
        pair: the ledger's name of the noise, and the kind of the sampler.
        adjacency: adjacency of its releases and of its epsilon.
        known: whether the observer may know who is in which release.
        within_task: whether few-shot clients make its releases over their own examples.
        shared_records: whether its records are examples that several simulated clients
            may hold.
        follows_loss: whether its noise may follow a public validation loss
            (`accounting.filters`).
        units: the sampler's key for the number of units that a cohort is drawn from:
            "clients" or "records".
        records_too: whether that key is "records" wherever the sampler has it.
        explanation, images: assumptions, for people; in `images` "{uses}" is the number
            of clients of the worst image.
        width: why the bracket is wide, as a clause.
    """

    pair: ClassVar[tuple[str, str]]
    adjacency: ClassVar[str] = "zero-out"
    known: ClassVar[bool] = False
    within_task: ClassVar[bool] = False
    shared_records: ClassVar[bool] = False
    follows_loss: ClassVar[bool] = False
    units: ClassVar[str] = "clients"
    records_too: ClassVar[bool] = False
    explanation: ClassVar[str]
    images: ClassVar[str] = ""
    width: ClassVar[str] = (
        "each end is a bound of its own, and the exact value is not known"
    )

    def read(self, lines: Sequence[Release]) -> Events:
        """Read the lines of a ledger with this mechanism and sampler.

        Raises:
            DpsumError: `rounds_of` or `check` refuses the ledger.
        """
        rounds = rounds_of(lines, self.adjacency)
        self.check(lines[0].sampler)
        claimed = claimed_schedule_of(rounds)
        return Events(
            samplings={event.name: event.sampler for event in rounds[0]},
            schedule=schedule_of(rounds),
            claimed=((claimed, lines[0].sampler),),
            multipliers=[
                joint_multiplier([event.noise_multiplier for event in events])
                for events in rounds
            ],
            uncounted=sorted(
                {event.name for event in lines if not event.counted_by_paper}
            ),
        )

    def bracket(self, events: Events, delta: float) -> Bracket:
        """Return proven ends of epsilon, below and above the exact value."""
        z = self.gaussian(events)
        assert z is not None, "an accountant has a bracket or a Gaussian"
        return exact_bracket(z, delta)

    def high(self, events: Events, delta: float) -> float:
        """Return the high end alone: cheaper where the low end needs a fine grid."""
        return self.bracket(events, delta)[1]

    def curve(self, events: Events) -> Curve:
        """Return an upper bound on the whole trade-off curve.

        The default searches by `high`, which is slow, so that the curve has few points.
        """
        z = self.gaussian(events)
        if z is not None:
            exact = gaussian_deltas(z, EPSILONS)
            return Curve(EPSILONS, exact, exact)
        deltas = np.concatenate(
            [np.geomspace(1e-7, 1e-2, 6), np.geomspace(2e-2, 0.9, 12)]
        )
        return Curve(
            np.array([self.high(events, float(delta)) for delta in deltas]),
            deltas,
            deltas,
        )

    # Optional analyses

    def gaussian(self, events: Events) -> float | None:
        """Return the multiplier of one Gaussian that dominates all releases.

        None where there is no such Gaussian.
        """
        return None

    def renyi(self, events: Events, orders: Sequence[int]) -> np.ndarray:
        """Return upper bounds on the Renyi divergence of all releases, at each order.

        Raises:
            DpsumError: this accountant has no Renyi divergences.
        """
        z = self.gaussian(events)
        if z is None:
            raise DpsumError(
                f"there are no Renyi divergences for the sampler {self.pair[1]!r}:"
                " declare no search for it"
            )
        return np.array(orders) / (2 * z**2)

    def replaced(self, events: Events, delta: float) -> Bracket | None:
        """Return both ends under replace-one adjacency.

        None: no such analysis. The caller composes zeroing out with its reverse.
        """
        return None

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        """Return both ends for the worst image: all its clients are zeroed out.

        Raises:
            DpsumError: there is no such analysis.
        """
        raise DpsumError(f"no image-level analysis for the sampler {self.pair[1]!r}")

    def explain(self, events: Events) -> str:
        """Return the assumptions of the bracket of a ledger."""
        return self.explanation

    def width_reason(self, events: Events, delta: float) -> str:
        """Return why the bracket is wide, as a clause.

        The account states it for a wide bracket (`fine_brackets.is_wide`).
        """
        return self.width

    # Checks of a sampler's numbers

    def check(self, sampling: Sampler) -> None:
        """Refuse a sampler whose numbers contradict one another.

        Without this check, the account would depend on which numbers it reads.

        Raises:
            Contradiction: the message names the numbers and the expected values.
        """
        numbers = Sampling.from_mapping(sampling)
        units = self.units_of(numbers)
        for key in ("cohort", "rate"):
            if (
                not isinstance(numbers.get(key), (int, float))
                or not 0 < numbers[key] < math.inf
            ):
                raise self.contradiction(numbers, f"{key} is not a number above 0")
        self.check_whole(numbers, "clients", units, "rounds")
        if numbers["cohort"] > numbers[units]:
            raise self.contradiction(
                numbers, f"cohort is more than the {numbers[units]:,} {units}"
            )
        self.check_numbers(numbers)

    def check_numbers(self, sampling: Sampling) -> None:
        """Check the relations between a sampler's numbers, which are valid one by one.

        By default the rate must be the cohort's share of the units.
        """
        units = self.units_of(sampling)
        share = sampling["cohort"] / sampling[units]
        if not math.isclose(sampling["rate"], share, rel_tol=1e-12):
            text = (
                f"{sampling['cohort']:,} of {sampling[units]:,} {units} is a rate of"
                f" {share:.6g}"
            )
            raise self.contradiction(sampling, text)

    def check_whole(self, sampling: Sampling, *keys: str) -> None:
        """Refuse a sampler where one of these keys is not an integer of at least 1."""
        for key in keys:
            value = sampling.get(key)
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 1 <= value < math.inf
                or value % 1
            ):
                raise self.contradiction(
                    sampling, f"{key} is not a whole number of at least 1"
                )

    def units_of(self, sampling: Sampler) -> str:
        """Return the sampler's key for the number of units a cohort is drawn from."""
        if self.records_too and "records" in sampling:
            return "records"
        return self.units

    def contradiction(self, sampling: Sampling, why: str) -> Contradiction:
        """Return the error that refuses a sampler."""
        pairs = ", ".join(
            f"{key} {value}" for key, value in sampling.items() if key != "kind"
        )
        text = (
            f"the ledger's sampler {self.pair[1]} is invalid ({pairs}): {why}; {MEND}"
        )
        return Contradiction(text, why)


def schedule_of(rounds: Sequence[Sequence[Release]]) -> Schedule:
    """Return the noise of rounds as (z, number of rounds) pairs in order.

    The releases of one round count as one Gaussian.
    """
    return _schedule_of_multipliers(
        [[event.noise_multiplier for event in events] for events in rounds]
    )


def claimed_schedule_of(rounds: Sequence[Sequence[Release]]) -> Schedule:
    """Return the noise that the method's paper counts, in the form of `schedule_of`.

    It omits releases that the paper leaves out. For groups of coordinates it has the
    multiplier that the paper counts.
    """
    return _schedule_of_multipliers(
        [
            [event.counted_multiplier for event in events if event.counted_by_paper]
            for events in rounds
        ]
    )


def _schedule_of_multipliers(rounds: Sequence[Sequence[float]]) -> Schedule:
    joint = [joint_or_only(multipliers) for multipliers in rounds]
    return tuple(collections.Counter(joint).items())


def rounds_of(
    releases: Sequence[Release], adjacency: str = "zero-out"
) -> list[list[Release]]:
    """Return the releases round by round, and check that one mechanism made them.

    Raises:
        DpsumError: rounds are missing, repeated or out of order, samplers differ, or
            the noise contradicts z and C.
    """
    first = releases[0]
    rounds = list[list[Release]]()
    for number, event in enumerate(releases):
        where = f"the ledger's release {number}"
        _check_release(event, first, where, adjacency)
        if event.round == len(rounds):
            rounds.append([event])
        elif (
            rounds
            and event.round == len(rounds) - 1
            and event.name not in {known.name for known in rounds[-1]}
        ):
            rounds[-1].append(event)
        else:
            raise DpsumError(f"{where} is of round {event.round}: {MEND}")
    released_names = {frozenset(event.name for event in events) for events in rounds}
    if len(released_names) > 1:
        raise DpsumError(f"the ledger's rounds differ in what they released: {MEND}")
    if len(rounds) > first.sampler["rounds"]:
        raise DpsumError(
            f"the ledger has {len(rounds)} rounds, but its sampler plans"
            f" {first.sampler['rounds']}"
        )
    return rounds


def check_sensitivity(event: Release, where: str) -> None:
    """Refuse a line whose sensitivity is below that of its threshold and adjacency.

    A unit that is zeroed out moves a sum by up to C, one that is replaced by up to 2C.

    Args:
        event: line of a ledger.
        where: position of the line, for messages.

    Raises:
        DpsumError: the line's adjacency is unknown, or its sensitivity is too small.
    """
    if event.adjacency not in REACH:
        raise DpsumError(
            f"{where} is for {event.adjacency} adjacency: accounts are for"
            f" {' and '.join(REACH)}"
        )
    least = REACH[event.adjacency] * np.atleast_1d(event.threshold)
    sensitivity = np.atleast_1d(event.sensitivity)
    if len(sensitivity) != len(least) or (sensitivity < least).any():
        raise DpsumError(
            f"{where} declares sensitivity {event.sensitivity}, less than the"
            f" {event.adjacency} sensitivity of its threshold {event.threshold}: its"
            " mechanism is not the one accounted for"
        )


def _check_release(event: Release, first: Release, where: str, adjacency: str) -> None:
    if any(
        getattr(event, name) != getattr(first, name)
        for name in ("sampler", "unit", "adjacency", "mechanism")
    ):
        raise DpsumError(
            f"{where} has another sampler, unit, adjacency or mechanism than the"
            " first: account for them separately"
        )
    if event.adds is not None and event.adds > (
        clients := event.sampler.get("clients", 1)
    ):
        raise DpsumError(
            f"{where} is added to those of {event.adds} clients, but its sampler has"
            f" {clients}: its mechanism is not the one accounted for"
        )
    if event.adjacency != adjacency:
        raise DpsumError(
            f"{where} is for {event.adjacency} adjacency: the analysis of its sampler"
            f" is for {adjacency}"
        )
    check_sensitivity(event, where)
    z = event.noise_multiplier
    stated = (event.threshold, event.sensitivity, event.noise_std)
    columns = [np.atleast_1d(value).tolist() for value in stated]
    for threshold, sensitivity, noise_std in zip(*columns, strict=True):
        is_valid = 0 < z < math.inf and 0 < threshold < math.inf
        if not is_valid:
            raise DpsumError(
                f"{where} has z {z} and C {threshold}: both must be above 0"
            )
        if not math.isclose(noise_std, z * sensitivity, rel_tol=1e-12):
            raise DpsumError(
                f"{where} has noise of deviation {noise_std}, not z x sensitivity = "
                f"{z * sensitivity}: its mechanism is not the one accounted for"
            )


class ComposedAccountant(Accountant):
    """Base of accountants of sampled rounds, each of whose ends is computed by itself.

    Long schedules are `grouped`.

    Attributes:
        ends_of: functions from (schedule, numbers of the sampler, delta) to the low and
            to the high end of epsilon.
    """

    ends_of: ClassVar[tuple[Callable[..., float], Callable[..., float]]]

    def drawn(self, sampling: Sampling) -> tuple[float, ...]:
        """Return the numbers of the sampler for `ends_of`."""
        return (float(sampling["rate"]),)

    def end(self, events: Events, delta: float, *, upper: bool, **more: str) -> float:
        """Return a proven end of epsilon, the upper or the lower one."""
        schedule = grouped(events.schedule, least=upper)
        drawn = self.drawn(events.sampling)
        return self.ends_of[upper](schedule, *drawn, delta, **more)

    def gaussian(self, events: Events) -> float | None:
        """Return the joint multiplier at rate 1: all releases are one Gaussian."""
        if events.rate == 1:
            return joint_of(events.schedule)
        return None

    def bracket(self, events: Events, delta: float) -> Bracket:
        if self.gaussian(events) is not None:
            return super().bracket(events, delta)
        low = self.end(events, delta, upper=False)
        return low, self.high(events, delta)

    def high(self, events: Events, delta: float) -> float:
        if self.gaussian(events) is not None:
            return super().bracket(events, delta)[1]
        return self.end(events, delta, upper=True)

    def width_reason(self, events: Events, delta: float) -> str:
        if grouped(events.schedule, least=True) != events.schedule:
            return (
                "rounds of similar noise are taken together, at their least noise for"
                " the high end and at their most for the low end"
            )
        if delta < LEAST_GRID_DELTA:
            return (
                f"no grid is made below delta = {LEAST_GRID_DELTA:g}, so that the low end"
                " is that of this delta, and the high end that of known cohorts"
            )
        if delta < LEAST_USUAL_DELTA:
            return (
                "the rounding of the Fourier transform is counted, and it is not small"
                f" beside a delta below {LEAST_USUAL_DELTA:g}"
            )
        return (
            "the step of the finest grid that fits into memory adds up over the rounds"
        )
