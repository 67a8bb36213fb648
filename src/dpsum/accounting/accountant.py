"""The base of accountants: one for each pair of a mechanism and a way of sampling,
found by place (`analyses`).

An accountant reads the lines of a ledger (`read`) and says what they tell of one unit:
proved ends of epsilon (`bracket`) and the whole trade-off curve from above (`curve`).
What it can say besides is optional.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dpsum.accounting.gaussian import (
    Bracket,
    Schedule,
    ends,
    exact_bracket,
    gaussian_deltas,
    joint_multiplier,
    joint_or_only,
)
from dpsum.accounting.image_level import ImageUse
from dpsum.errors import DpsumError
from dpsum.ledger import Release
from dpsum.sampling import Sampler, Sampling

EPSILONS = np.append(0.0, np.geomspace(1e-3, 20.0, 160))
"""Where a trade-off curve is found: losses of every size, each one sixteenth from the
next.
"""

MEND = "delete the run's folder and train again"


class Curve(NamedTuple):
    """A trade-off curve: at each epsilon >= 0 an upper end of delta, float64 [n].

    `present`: of a unit's presence against its absence; `absent`: the other way.
    """

    epsilons: np.ndarray
    present: np.ndarray
    absent: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Events:
    """Releases as an accountant needs them, read from a ledger or planned.

    Attributes:
        schedule: the noise of all releases; those of one round that read the same
            cohort as one Gaussian.
        samplings: how the cohort of each name that was released was drawn.
        multipliers: of each round's releases as one.
        claimed: noise and sampler of the releases that the method's paper counts; of
            several the worst is claimed.
        uncounted: names of the releases that the paper does not count.
        details: what an accountant reads besides for itself; None of rounds that are
            planned.
    """

    schedule: Schedule
    samplings: Mapping[str, Sampling]
    multipliers: Sequence[float] = ()
    claimed: Sequence[tuple[Schedule, Sampling]] = ()
    uncounted: Sequence[str] = ()
    details: Any = None

    @classmethod
    def planned(cls, schedule: Schedule, sampling: Sampler) -> Events:
        """The events of rounds of independent noise that are planned, before there is a
        ledger.
        """
        sampling_numbers = Sampling.of(sampling)
        multipliers = [z for z, count in schedule for _ in range(count)]
        return cls(
            schedule=schedule,
            samplings={"": sampling_numbers},
            multipliers=multipliers,
            claimed=((schedule, sampling_numbers),),
        )

    @property
    def sampling(self) -> Sampling:
        """The sampler of the first name."""
        return next(iter(self.samplings.values()))

    @property
    def rate(self) -> float:
        """A unit's chance of being in a given round."""
        return float(self.sampling["rate"])

    @property
    def ends(self) -> tuple[float, float, int]:
        """The least and the greatest multiplier, and the rounds."""
        return ends(self.schedule)

    def of_noise(self, schedule: Schedule) -> Events:
        """The same releases with other noise, of which nothing more is known."""
        return dataclasses.replace(self, schedule=schedule, details=None)


class Contradiction(DpsumError):
    """The numbers of a sampler do not fit together; `why` says so in words that name no
    ledger.
    """

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class Accountant:
    """Accounts for one mechanism under one way of sampling.

    A subclass names its `pair` and has `bracket`, or `gaussian` where all releases are
    one Gaussian to a unit; the rest follows, or has its own where that is tighter or
    quicker.

    Attributes:
        pair: what the ledger calls the noise, and the kind of its sampler.
        adjacency: that its releases are for, and what it says of them.
        known: whether the observer may know who is in which release.
        within_task: whether its releases are those that few-shot clients make over their own
            examples.
        shared_records: whether its records are examples that several simulated clients
            may hold.
        follows_loss: whether its noise may follow a public validation loss
            (`accounting.filters`).
        units: the key of its sampler for the units that a cohort is drawn from:
            "clients" or "records".
        records_too: whether that is "records" wherever the sampler has that key.
        explanation, images: what it takes for granted, for people; in `images` "{uses}"
            is the worst image's clients.
        width: why the bracket is wide where it is, as a clause.
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
        """A ledger of this mechanism and sampler; DpsumError where `rounds_of` or
        `check` refuses it.
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
        """Proved ends of epsilon: the low one below, the high one above the exact
        value.
        """
        z = self.gaussian(events)
        assert z is not None, "an accountant has a bracket or a Gaussian"
        return exact_bracket(z, delta)

    def high(self, events: Events, delta: float) -> float:
        """The high end alone, which is much cheaper where the low end takes a finer
        grid.
        """
        return self.bracket(events, delta)[1]

    def curve(self, events: Events) -> Curve:
        """The whole trade-off curve, from above. By `high` it takes many searches, and
        has few lines.
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

    # What only some can say

    def gaussian(self, events: Events) -> float | None:
        """The multiplier of one Gaussian that tells of a unit at least what all
        releases tell; None for none.
        """
        return None

    def renyi(self, events: Events, orders: Sequence[int]) -> np.ndarray:
        """Upper ends of the Renyi divergence of all releases, at each order; DpsumError
        where there are none.
        """
        z = self.gaussian(events)
        if z is None:
            raise DpsumError(
                f"no Renyi divergences of the sampler {self.pair[1]!r}: declare no"
                " search for it"
            )
        return np.array(orders) / (2 * z**2)

    def replaced(self, events: Events, delta: float) -> Bracket | None:
        """Both ends where the unit's contribution becomes any other; None: it is zeroed
        and then another is put in.
        """
        return None

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        """Both ends for the worst image, all its clients contributing zero; DpsumError
        without such an analysis.
        """
        raise DpsumError(f"no image-level analysis for the sampler {self.pair[1]!r}")

    def explain(self, events: Events) -> str:
        """Return the assumptions of the bracket of a ledger."""
        return self.explanation

    def width_reason(self, events: Events, delta: float) -> str:
        """Return why the bracket is wide, as a clause: said where it is
        (`fine_brackets.is_wide`).
        """
        return self.width

    # What fits together in a sampler

    def check(self, sampling: Sampler) -> None:
        """Refuse a sampler whose numbers contradict one another: an account would
        follow from whichever it reads.

        Raises:
            Contradiction: says which numbers, and what they should be.
        """
        numbers = Sampling.of(sampling)
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
        """Check how a sampler's numbers, each of them valid, relate; here the rate is
        the cohort's share.
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
        """Refuse a sampler where one of these keys is not a whole number from 1 on."""
        for key in keys:
            value = sampling.get(key)
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 1 <= value < math.inf
                or value % 1
            ):
                raise self.contradiction(
                    sampling, f"{key} is not a whole number from 1 on"
                )

    def units_of(self, sampling: Sampler) -> str:
        """The key of a sampler that says how many units a cohort is drawn from."""
        if self.records_too and "records" in sampling:
            return "records"
        return self.units

    def contradiction(self, sampling: Sampling, why: str) -> Contradiction:
        """The error that refuses a sampler."""
        pairs = ", ".join(
            f"{key} {value}" for key, value in sampling.items() if key != "kind"
        )
        text = (
            f"the ledger's sampler {self.pair[1]} says {pairs}, which do not fit"
            f" together: {why}; {MEND}"
        )
        return Contradiction(text, why)

    def sampling_of(self, lines: Sequence[Release]) -> Sampling:
        """The sampler of a ledger, with what else `high` needs of it."""
        return lines[0].sampler


def schedule_of(rounds: Sequence[Sequence[Release]]) -> Schedule:
    """The noise of rounds as (z, rounds at it), ... in order; the releases of one round
    count as one Gaussian.
    """
    multipliers = [
        joint_or_only([event.noise_multiplier for event in events]) for events in rounds
    ]
    return tuple(collections.Counter(multipliers).items())


def claimed_schedule_of(rounds: Sequence[Sequence[Release]]) -> Schedule:
    """Return the noise that the method's paper counts, as `schedule_of` gives it.

    Releases that the paper leaves out are not in it, and of groups of coordinates it
    has the multiplier that the paper counts.
    """
    return schedule_of(
        [
            [
                dataclasses.replace(
                    event,
                    noise_multiplier=event.counted_multiplier,
                    groups=None,
                    claimed_multiplier=None,
                )
                if event.claimed_multiplier is not None
                else event
                for event in events
                if event.counted_by_paper
            ]
            for events in rounds
        ]
    )


def rounds_of(
    releases: Sequence[Release], adjacency: str = "zero-out"
) -> list[list[Release]]:
    """The releases round by round, after checking that the ledger is one mechanism's.

    Raises:
        DpsumError: rounds are missing, doubled or out of order, samplers differ, or
            noise does not fit z and C.
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
            f"the ledger has {len(rounds)} rounds, its sampler plans"
            f" {first.sampler['rounds']}"
        )
    return rounds


def _check_release(event: Release, first: Release, where: str, adjacency: str) -> None:
    if any(
        getattr(event, name) != getattr(first, name)
        for name in ("sampler", "unit", "adjacency", "mechanism")
    ):
        raise DpsumError(
            f"{where} has another sampler, unit, adjacency or mechanism than the first:"
            " account for them apart"
        )
    if event.adds is not None and event.adds > (
        clients := event.sampler.get("clients", 1)
    ):
        raise DpsumError(
            f"{where} is added up with those of {event.adds} clients, but its sampler"
            f" has {clients}: its mechanism is not the one accounted for"
        )
    if event.adjacency != adjacency:
        raise DpsumError(
            f"{where} is for {event.adjacency} adjacency: its sampler's analysis is for"
            f" {adjacency}"
        )
    z = event.noise_multiplier
    stated = (event.threshold, event.sensitivity, event.noise_std)
    columns = []
    for value in stated:
        if isinstance(value, list):
            columns.append(value)
        else:
            columns.append([value])
    for threshold, sensitivity, noise_std in zip(*columns, strict=True):
        is_valid = 0 < z < math.inf and 0 < threshold < math.inf
        if not is_valid:
            raise DpsumError(
                f"{where} has z {z} and C {threshold}: both must be above 0"
            )
        if sensitivity < threshold:
            raise DpsumError(
                f"{where} declares sensitivity {sensitivity}, less than its threshold"
                f" {threshold}: its mechanism is not the one accounted for"
            )
        if not math.isclose(noise_std, z * sensitivity, rel_tol=1e-12):
            raise DpsumError(
                f"{where} has noise of deviation {noise_std}, not z x sensitivity = "
                f"{z * sensitivity}: its mechanism is not the one accounted for"
            )
