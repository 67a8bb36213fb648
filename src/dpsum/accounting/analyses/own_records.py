"""Private sums that a few-shot client takes over its own examples: what they tell of one of them.

A client takes part once, in a round that the observer may know, and each of its examples is in its support set or in
its query set. So an example is in a known number of Gaussian releases of sensitivity C_0, and in no others: exact.
(Simulated clients share images. An image that several clients hold is in each one's releases.)
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import scipy

from dpsum.accounting.analyses import find
from dpsum.accounting.analyses.base import Analysis, Reading, rounds_of, schedule_of
from dpsum.accounting.analyses.one_pass import OnePass
from dpsum.accounting.claims import NO_CLAIM, Claim, Claims
from dpsum.accounting.gaussian import gaussian_epsilon, rounded_up
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler, Schedule, ends
from dpsum.errors import DpsumError
from dpsum.ledger import Release

KIND = "own-records"
"""The sampler of these releases: every client that takes part, over its own records."""


POISSON = "own-records-poisson"
"""The same where each release reads each of the records with the same chance (`own_records_poisson`)."""


def describe(*, clients: int, rounds: int, records: int, steps: int, batches: str) -> dict[str, Any]:
    """The sampler, for the ledger.

    Args:
        clients: N, who take part at most once.
        rounds: planned.
        records: those of one client that its releases of this kind read.
        steps: releases of this kind that one client makes.
        batches: "full": each reads all of the records; "disjoint": each reads a part of its own; "poisson": each
            reads each record with the chance 1/steps, so that `cohort` is the mean number.
    """
    cohort = records if batches == "full" else records / steps if batches == "poisson" else records // steps
    return {
        "kind": POISSON if batches == "poisson" else KIND, "clients": clients, "records": records, "cohort": cohort,
        "rounds": rounds, "rate": cohort / records, "steps": steps,
    }  # fmt: skip


def releases_with(sampler: Sampler) -> int:
    """How many of its client's releases one record is in; where no records are told apart, all that it holds."""
    return int(sampler["steps"]) if sampler["cohort"] == sampler.get("records", sampler["cohort"]) else 1


def joint(releases: Iterable[Release]) -> float:
    """The multiplier of the one Gaussian that says as much of a record as all of its client's releases.

    A record is in the releases of one name: each name is a set of records of its own.
    """
    return min(event.noise_multiplier / releases_with(event.sampler) ** 0.5 for event in releases)


def _claimed(claim: Claim, sampler: Sampler, noise_multiplier: float, delta: float) -> float:
    return claim.epsilon(((noise_multiplier, int(sampler["steps"])),), sampler, delta)


def one_client(sampler: Sampler, noise_multiplier: float) -> Schedule:
    """What one client's releases of one name are for one of its records."""
    if sampler["kind"] == POISSON:
        return ((noise_multiplier, int(sampler["steps"])),)
    return ((noise_multiplier / releases_with(sampler) ** 0.5, 1),)


def epsilon_of(sampler: Sampler, noise_multiplier: float, delta: float) -> float:
    """What holds of one record, at most, after all of its client's releases of one name."""
    return find("gaussian", sampler["kind"]).high(one_client(sampler, noise_multiplier), sampler, delta)


def epsilon_under(profile: str, sampler: Sampler, noise_multiplier: float, delta: float, *, claims: Claims) -> float:
    """As `epsilon_of` under "holds"; under "as_claimed" what the paper has for that sampler, if it says something."""
    claim = claims.get(sampler["kind"]) if profile == "as_claimed" else None
    if claim is None:
        return epsilon_of(sampler, noise_multiplier, delta)
    return _claimed(claim, sampler, noise_multiplier, delta)


def calibrate(samplers: Mapping[str, Sampler], *, epsilon: float, delta: float, profile: str, claims: Claims) -> float:
    """The smallest z_0 with which every record's epsilon is at most `epsilon`, rounded up to four digits.

    Args:
        samplers: of the releases that are made, by their names.
        epsilon, delta: epsilon_0 and delta_0.
        profile: "holds", or "as_claimed" for the paper's own count.
        claims: the method's.

    Raises:
        DpsumError: no multiplier from 0.05 to 10,000 is enough, or the paper claims no epsilon.
    """
    if profile == "as_claimed" and not claims:
        raise DpsumError(f"{NO_CLAIM}: set within_task.profile to holds")

    def excess(z: float) -> float:
        found = (epsilon_under(profile, sampler, z, delta, claims=claims) for sampler in samplers.values())
        return max(found) - epsilon

    low, high = 0.05, 10_000.0
    if excess(high) > 0:
        raise DpsumError(
            f"no noise multiplier up to {high:,.0f} meets within_task.epsilon {epsilon:g} at "
            f"within_task.delta {delta:g}: raise one"
        )
    if excess(low) <= 0:
        return low
    return rounded_up(float(scipy.optimize.brentq(excess, low, high, xtol=1e-10)))


def check_steps(analysis: Analysis, sampler: Sampler) -> None:
    """Refuse a sampler that does not say in how many releases a client's records are read.

    Raises:
        DpsumError: see above.
    """
    steps = sampler.get("steps")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise analysis.contradiction(sampler, "steps is not a whole number of at least 1")


class OwnRecords(OnePass):
    """Releases of several names, each over a set of records of its own: one Gaussian for each, exactly."""

    sampler = KIND
    own = True
    shared_records = True
    images = "an image is an example of up to {uses} simulated clients, each of which makes releases of its own"

    units = "records"

    def check_rate(self, sampler: Sampler) -> None:
        """A record is in all of its client's releases, or in one of them, which share the records out."""
        Analysis.check_rate(self, sampler)
        check_steps(self, sampler)
        held, read = sampler["records"], sampler["cohort"] * sampler["steps"]
        if sampler["cohort"] != held and read > held:
            raise self.contradiction(sampler, f"releases of records that are disjoint cannot read {read:,} of {held:,}")

    def read(self, releases: Sequence[Release]) -> Reading:
        named: dict[str, list[Release]] = {}
        for event in releases:
            named.setdefault(event.name, []).append(event)
        kinds = [rounds_of(events) for events in named.values()]
        for events in named.values():
            self.check_sampler(events[0].sampler)
        if len({len(rounds) for rounds in kinds}) > 1:
            raise DpsumError(
                "the ledger's rounds differ in what they released: delete the run's folder and train again"
            )
        rounds = [[event for (event,) in together] for together in zip(*kinds, strict=True)]
        multipliers = [joint(together) for together in rounds]
        return Reading(
            samplers={event.name: event.sampler for event in rounds[0]},
            schedule=tuple(collections.Counter(multipliers).items()),
            claimed=schedule_of([together[:1] for together in rounds]),
            multipliers=multipliers,
        )

    def explain(self, reading: Reading) -> str:
        counts = {name: releases_with(sampler) for name, sampler in reading.samplers.items()}
        told = ", or ".join(f"in {count} of {name}" for name, count in counts.items())
        return f"a client takes part once, and one of its examples is {told}: one Gaussian; exact"

    def claimed(self, claim: Claim, reading: Reading, delta: float) -> tuple[float, str, str]:
        z, samplers = ends(reading.claimed)[0], reading.samplers.values()
        epsilon = max(_claimed(claim, sampler, z, delta) for sampler in samplers)
        return epsilon, *claim.statement(max(samplers, key=lambda sampler: int(sampler["steps"])))

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        z, uses = min(multipliers), int(use.counts().max())
        return gaussian_epsilon(z, delta), gaussian_epsilon(z / uses**0.5, delta)
