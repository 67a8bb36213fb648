"""Within-task sums: a few-shot client's private sums over its own examples.

A client takes part once, in a round that the observer may know. Each of its examples is
in its support set or in its query set. So an example is in a known number of Gaussian
releases of sensitivity C_0, and in no others: the account is exact. (Simulated clients
share images. An image that several clients hold is in the releases of each.) Where each
step samples the examples, see `poisson.OwnRecordsPoissonAccountant`.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence

import scipy

from dploss.gaussian import Bracket, Schedule, gaussian_epsilon, rounded_up
from dpsum.accounting.accountant import (
    MEND,
    Accountant,
    Events,
    claimed_schedule_of,
    rounds_of,
)
from dpsum.accounting.analyses import find
from dpsum.accounting.claims import NO_CLAIM, Claims
from dpsum.accounting.image_level import ImageUse
from dpsum.errors import DpsumError
from dpsum.ledger import Release
from dpsum.sampling import Sampler, Sampling


def releases_with(sampler: Sampler) -> int:
    """Return the number of its client's releases that contain one record.

    It is all of them where each reads all records, else one.
    """
    records = sampler.get("records", sampler["cohort"])
    if sampler["cohort"] == records:
        return int(sampler["steps"])
    return 1


def joint(lines: Iterable[Release]) -> float:
    """Return the multiplier of one Gaussian equivalent to all releases of a record.

    A record is in the releases of one name: each name has its own set of records.
    """
    return min(
        event.noise_multiplier / releases_with(event.sampler) ** 0.5 for event in lines
    )


def one_client(sampler: Sampler, noise_multiplier: float) -> Schedule:
    """Return the noise of one client's releases of one name, for one of its records."""
    if sampler["kind"] == "within-task-poisson":
        return ((noise_multiplier, int(sampler["steps"])),)
    return ((noise_multiplier / releases_with(sampler) ** 0.5, 1),)


def epsilon_of(sampler: Sampler, noise_multiplier: float, delta: float) -> float:
    """Return epsilon (high end) of a record after its client's releases of one name."""
    events = Events.planned(one_client(sampler, noise_multiplier), sampler)
    accountant = find("gaussian", sampler["kind"])
    return accountant.high(events, delta)


def epsilon_under(
    profile: str,
    sampler: Sampler,
    noise_multiplier: float,
    delta: float,
    *,
    claims: Claims,
) -> float:
    """Return `epsilon_of` under "proven"; under "claimed" the paper's epsilon for
    that sampler, where it has one.
    """
    claim = claims.get(sampler["kind"]) if profile == "claimed" else None
    if claim is None:
        return epsilon_of(sampler, noise_multiplier, delta)
    schedule = ((noise_multiplier, int(sampler["steps"])),)
    return claim.epsilon(schedule, sampler, delta)


def calibrate(
    samplers: Mapping[str, Sampler],
    *,
    epsilon: float,
    delta: float,
    profile: str,
    claims: Claims,
) -> float:
    """Return the smallest z_0 for which every record's epsilon is at most `epsilon`.

    It is rounded up to four digits.

    Args:
        samplers: samplers of the releases, by their names.
        epsilon, delta: the budget.
        profile: "proven", or "claimed" for the paper's accounting.
        claims: claims of the method's paper.

    Raises:
        DpsumError: no multiplier from 0.05 to 10,000 suffices, or the paper claims no
            epsilon.
    """
    if profile == "claimed" and not claims:
        raise DpsumError(f"{NO_CLAIM}: set within_task.profile to proven")

    def excess(z: float) -> float:
        epsilons = (
            epsilon_under(profile, sampler, z, delta, claims=claims)
            for sampler in samplers.values()
        )
        return max(epsilons) - epsilon

    low = 0.05
    high = 10_000.0
    if excess(high) > 0:
        raise DpsumError(
            f"no noise multiplier up to {high:,.0f} meets within_task.epsilon"
            f" {epsilon:g} at within_task.delta {delta:g}: raise one"
        )
    if excess(low) <= 0:
        return low
    root = scipy.optimize.brentq(excess, low, high, xtol=1e-10)
    return rounded_up(float(root))


class OwnRecordsAccountant(Accountant):
    """Accountant of releases of several names, each over its own set of records.

    Each name is one Gaussian, exactly.
    """

    pair = "gaussian", "within-task"
    known = True
    within_task = True
    shared_records = True
    units = "records"
    explanation = (
        "a client takes part once, and each of its examples is in a known number of its"
        " releases; exact"
    )
    images = (
        "an image is an example of up to {uses} simulated clients, each of which makes"
        " releases of its own"
    )

    def check_numbers(self, sampling: Sampling) -> None:
        """Check the records of the releases.

        A record is in all of its client's releases, or in one of them where the
        releases divide the records.
        """
        super().check_numbers(sampling)
        self.check_whole(sampling, "steps")
        held = sampling["records"]
        read = sampling["cohort"] * sampling["steps"]
        if sampling["cohort"] != held and read > held:
            text = (
                f"releases of records that are disjoint cannot read {read:,} of"
                f" {held:,}"
            )
            raise self.contradiction(sampling, text)

    def read(self, lines: Sequence[Release]) -> Events:
        named: dict[str, list[Release]] = {}
        for event in lines:
            named.setdefault(event.name, []).append(event)
        kinds = [rounds_of(events) for events in named.values()]
        for events in named.values():
            self.check(events[0].sampler)
        if len({len(rounds) for rounds in kinds}) > 1:
            raise DpsumError(
                f"the ledger's rounds differ in what they released: {MEND}"
            )
        rounds = [
            [event for (event,) in together] for together in zip(*kinds, strict=True)
        ]
        multipliers = [joint(together) for together in rounds]
        counted = claimed_schedule_of([together[:1] for together in rounds])
        z = min(z for z, _ in counted)
        samplings = {event.name: event.sampler for event in rounds[0]}
        return Events(
            samplings=samplings,
            schedule=tuple(collections.Counter(multipliers).items()),
            multipliers=multipliers,
            claimed=[
                (((z, int(sampling["steps"])),), sampling)
                for sampling in samplings.values()
            ],
        )

    def gaussian(self, events: Events) -> float:
        return events.ends[0]

    def explain(self, events: Events) -> str:
        counts = {
            name: releases_with(sampling) for name, sampling in events.samplings.items()
        }
        memberships = ", or ".join(
            f"in {count} of {name}" for name, count in counts.items()
        )
        return (
            f"a client takes part once, and one of its examples is {memberships}: one"
            " Gaussian; exact"
        )

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        z = min(events.multipliers)
        one_client = gaussian_epsilon(z, delta)
        one_image = gaussian_epsilon(z / use.most**0.5, delta)
        return one_client, one_image
