"""Private sums that a few-shot client takes over its own examples: what they tell of one of them.

A client takes part once, in a round that the observer may know, and each of its examples is in its support set or in
its query set. So an example is in a known number of Gaussian releases of sensitivity C_0, and in no others: exact.
(Simulated clients share images. An image that several clients hold is in each one's releases: `image_multiplier`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import scipy

from dpfedbench.errors import BenchError
from dpfedbench.privacy import poisson
from dpfedbench.privacy.gaussian import gaussian_epsilon, rounded_up
from dpfedbench.privacy.ledger import Release

KIND = "own-records"
"""The sampler of these releases: every client that takes part, over its own records."""

REPTILE = "task-gradient-sum"
"""The release whose steps the paper of task-global Reptile counts one by one."""


def describe(*, clients: int, rounds: int, records: int, steps: int, batches: str) -> dict[str, Any]:
    """The sampler, for the ledger.

    Args:
        clients: N, who take part at most once.
        rounds: planned.
        records: those of one client that its releases of this kind read.
        steps: releases of this kind that one client makes.
        batches: "full": each reads all of the records; "disjoint": each reads a part of its own.
    """
    cohort = records if batches == "full" else records // steps
    return {
        "kind": KIND, "clients": clients, "records": records, "cohort": cohort, "rounds": rounds,
        "rate": cohort / records, "steps": steps,
    }  # fmt: skip


def releases_with(sampler: Mapping[str, Any]) -> int:
    """How many of its client's releases one record is in."""
    return int(sampler["steps"]) if sampler["cohort"] == sampler["records"] else 1


def joint(releases: Iterable[Release]) -> float:
    """The multiplier of the one Gaussian that says as much of a record as all of its client's releases.

    A record is in the releases of one name: each name is a set of records of its own.
    """
    return min(event.noise_multiplier / releases_with(event.sampler) ** 0.5 for event in releases)


def claimed_epsilon(name: str, sampler: Mapping[str, Any], noise_multiplier: float, delta: float) -> float:
    """As the papers count it.

    Task-global Reptile: Renyi accounting of its steps by TensorFlow Privacy, at q = batch / records. DP-AGRLR and
    sample-level DP-MAML state the noise of one release; their released code counts several steps as one.
    """
    if name != REPTILE:
        return gaussian_epsilon(noise_multiplier, delta)
    schedule = ((noise_multiplier, int(sampler["steps"])),)
    return poisson.renyi_epsilon(schedule, sampler["rate"], delta, poisson.TF_PRIVACY_ORDERS)


def calibrate(samplers: Mapping[str, Mapping[str, Any]], *, epsilon: float, delta: float, profile: str) -> float:
    """The smallest z_0 with which every record's epsilon is at most `epsilon`, rounded up to four digits.

    Args:
        samplers: of the releases that are made, by their names.
        epsilon, delta: epsilon_0 and delta_0.
        profile: "holds", or "as_claimed" for the paper's own count.

    Raises:
        BenchError: no multiplier from 0.05 to 10,000 is enough.
    """

    def excess(z: float) -> float:
        if profile == "holds":
            return max(gaussian_epsilon(z / releases_with(s) ** 0.5, delta) for s in samplers.values()) - epsilon
        return max(claimed_epsilon(name, sampler, z, delta) for name, sampler in samplers.items()) - epsilon

    low, high = 0.05, 10_000.0
    if excess(high) > 0:
        raise BenchError(
            f"no noise multiplier up to {high:,.0f} meets local.epsilon {epsilon:g} at local.delta {delta:g}: raise one"
        )
    if excess(low) <= 0:
        return low
    return rounded_up(float(scipy.optimize.brentq(excess, low, high, xtol=1e-10)))
