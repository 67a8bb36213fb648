"""Calibration for planned rounds: from noise to epsilon or delta, and back."""

import functools
import math
from collections.abc import Callable
from typing import TypedDict, Unpack

from dploss.gaussian import Schedule, rounded_up
from dpsum.accounting.accountant import Accountant, Events
from dpsum.accounting.analyses import find
from dpsum.accounting.claims import NO_CLAIM, Claims
from dpsum.errors import DpsumError
from dpsum.sampling import Sampler, Sampling

_LEAST_DELTA = 1e-30


class AccountingOptions(TypedDict, total=False):
    """Further arguments of the account of a plan.

    They are the claims of the method's paper, and the name of the noise in the ledger
    (by default "gaussian").
    """

    claims: Claims
    mechanism: str


@functools.lru_cache(maxsize=4096)
def _epsilon(
    accountant: Accountant,
    claimed: Callable[..., float] | None,
    schedule: Schedule,
    sampling: Sampling,
    delta: float,
) -> float:
    if claimed is not None:
        return claimed(schedule, sampling, delta)
    return accountant.high(Events.planned(schedule, sampling), delta)


def epsilon_after(
    profile: str,
    sampler: Sampler,
    noise_multiplier: float,
    done: int,
    delta: float,
    **options: Unpack[AccountingOptions],
) -> float:
    """Return epsilon (its high end) after a number of planned rounds. Cached.

    Args:
        profile: "claimed" or "proven".
        sampler: sampler of the planned rounds.
        noise_multiplier: z.
        done: number of rounds; epsilon is 0 before the first.
        delta: delta at which epsilon is stated.
        options: see `AccountingOptions`; without claims "claimed" raises.

    Raises:
        DpsumError: z or delta is out of bounds, the mechanism and sampler have no
            analysis, or the paper claims no epsilon.
    """
    if not 0 < delta < 1:
        raise DpsumError(f"delta is {delta}: it must lie between 0 and 1")
    if not 0 < noise_multiplier < math.inf:
        raise DpsumError(
            f"the noise multiplier is {noise_multiplier}: it must be finite and above 0"
        )
    kind = str(sampler["kind"])
    claims = options.get("claims")
    accountant = find(options.get("mechanism", "gaussian"), kind)
    if profile not in ("claimed", "proven"):
        raise DpsumError(
            f"a plan cannot use the accounting profile {profile!r}: choose claimed or"
            " proven"
        )
    claim = None
    if profile == "claimed":
        if not claims:
            raise DpsumError(f"{NO_CLAIM}: set the profile to proven")
        claim = claims.get(kind)
    if done == 0:
        return 0.0
    schedule = ((float(noise_multiplier), int(done)),)
    return _epsilon(
        accountant,
        claim and claim.epsilon,
        schedule,
        Sampling.from_mapping(sampler),
        float(delta),
    )


def delta_after(
    profile: str,
    sampler: Sampler,
    noise_multiplier: float,
    done: int,
    epsilon: float,
    **options: Unpack[AccountingOptions],
) -> float:
    """Return the smallest delta at which `epsilon` suffices after `done` rounds.

    It is accurate to one part in a thousand, and at least 1e-30; 1 if no delta
    suffices. Arguments and errors as in `epsilon_after`.
    """
    if not 0 < epsilon < math.inf:
        raise DpsumError(f"epsilon is {epsilon}: it must be finite and above 0")

    def enough(log_delta: float) -> bool:
        delta = math.exp(log_delta)
        spent = epsilon_after(
            profile, sampler, noise_multiplier, done, delta, **options
        )
        return spent <= epsilon

    low = math.log(_LEAST_DELTA)
    high = math.log1p(-1e-9)
    if enough(low):
        return _LEAST_DELTA
    if not enough(high):
        return 1.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return math.exp(high)


def rounds_allowed(
    profile: str,
    sampler: Sampler,
    noise_multiplier: float,
    delta: float,
    epsilon: float,
    **options: Unpack[AccountingOptions],
) -> int:
    """Return the largest number of planned rounds within the budget."""
    within = 0
    beyond = int(sampler["rounds"]) + 1
    while beyond - within > 1:
        middle = (within + beyond) // 2
        spent = epsilon_after(
            profile, sampler, noise_multiplier, middle, delta, **options
        )
        if spent <= epsilon:
            within = middle
        else:
            beyond = middle
    return within


def calibrate(
    profile: str,
    sampler: Sampler,
    epsilon: float,
    delta: float,
    **options: Unpack[AccountingOptions],
) -> float:
    """Return the smallest noise multiplier for which all planned rounds fit the budget.

    It is rounded up to four significant digits, so that a configuration can state it.

    Args:
        profile: "claimed" or "proven".
        sampler: sampler of the planned rounds.
        epsilon, delta: the budget.
        options: see `AccountingOptions`.

    Raises:
        DpsumError: no multiplier from 0.05 to 10,000 suffices.
    """
    if not 0 < epsilon < math.inf:
        raise DpsumError(f"budget.epsilon is {epsilon}: it must be finite and above 0")

    rounds = int(sampler["rounds"])

    def enough(z: float) -> bool:
        spent = epsilon_after(profile, sampler, z, rounds, delta, **options)
        return spent <= epsilon

    low = 0.05
    high = 1.0
    while not enough(high):
        low = high
        high = high * 2
        if high > 10_000:
            raise DpsumError(
                f"no noise multiplier up to 10,000 meets epsilon {epsilon} at delta"
                f" {delta}: raise one"
            )
    while high / low > 1 + 1e-5:
        middle = math.sqrt(low * high)
        if enough(middle):
            high = middle
        else:
            low = middle
    return rounded_up(high)
