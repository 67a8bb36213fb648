"""Accountants: from what was released, and how its cohort was drawn, to epsilon.

Two profiles:

- `as_claimed`: the accounting that the run's paper did. DP-FedMeta and DP-MAML run disjoint blocks over one pass and
  account for Poisson sampling at q = L/N by TensorFlow Privacy's moments accountant. Adap DP-FL accounts for its lots
  by Renyi divergences of orders 2 to 64, and for the sum of gradients alone. For a sampler that no paper accounts for
  wrongly (balls-and-bins, Poisson: our repaired variants), the claim is what holds.
- `holds`: what the sampler and the observer justify. `ANALYSES` has one analysis a sampler:

  | sampler | analysis | guarantee |
  |---|---|---|
  | one-pass | blocks known to the observer: a client is in one Gaussian release, the rest follows from it | exact |
  | balls-and-bins | each client draws one secret round (Chua et al. 2024), by its privacy loss distribution | bracket |
  | poisson | composed sampled Gaussians, by their privacy loss distribution | bracket |
  | poisson-lots | the same for the records of one client: no record is at two clients | bracket |

An analysis that does not fit the sampler raises; it never prints a number. All are for zero-out adjacency, with the
sensitivity that the ledger states. Brackets are proved: the low end is below, the high end above the exact epsilon.
Several releases of one round that read the same cohort are one Gaussian of multiplier (sum of z^-2)^-1/2.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.config import RunConfig
from dpfedbench.errors import BenchError
from dpfedbench.files import write_json
from dpfedbench.privacy import balls_and_bins, poisson
from dpfedbench.privacy.gaussian import gaussian_epsilon
from dpfedbench.privacy.ledger import Release, read_ledger
from dpfedbench.privacy.poisson import Schedule

Sampler = Mapping[str, Any]
"""A participation plan's description: kind, clients, cohort, rounds, rate."""

Bracket = tuple[float, float]
"""Low and high end of epsilon."""


CLAIMED_ORDERS = tuple(range(2, 65))
"""Adap DP-FL, Section IV-D: alpha from {2, 3, ..., 64}."""

HOLDING_ORDERS = tuple(range(2, 257))
"""For a budget under `holds` that is kept lot by lot: more orders, all whole, since any of them is an upper end."""

UNCOUNTED = frozenset({"clipped-norm-sum"})
"""Releases that their paper makes and does not count (Adap DP-FL, eq. 6 read as a query of its own)."""

_GROUPS = 16
_HIGH_RATIO, _LOW_RATIO = 1.001, 1.1  # the low end has a finer grid, so that each group costs it far more


def _grouped(schedule: Schedule, *, least: bool) -> Schedule:
    """A long schedule with near multipliers put together, at their least (for a high end) or greatest (low end)."""
    if len(schedule) <= _GROUPS:
        return schedule
    groups: dict[int, list[tuple[float, int]]] = {}
    width = math.log(_HIGH_RATIO if least else _LOW_RATIO)
    for z, count in schedule:
        groups.setdefault(math.floor(math.log(z) / width), []).append((z, count))
    pick = min if least else max
    return tuple((pick(z for z, _ in group), sum(count for _, count in group)) for group in groups.values())


def _ends(schedule: Schedule) -> tuple[float, float, int]:
    """The least and the greatest multiplier, and the rounds."""
    multipliers = [z for z, _ in schedule]
    return min(multipliers), max(multipliers), sum(count for _, count in schedule)


def _one_gaussian(schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
    # The client of the least noisy round is the worst off.
    exact = gaussian_epsilon(_ends(schedule)[0], delta)
    return exact, exact


def _secret_round(schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
    _, most, done = _ends(schedule)
    low = balls_and_bins.lower_epsilon(most, int(sampler["rounds"]), done, delta)
    return low, _secret_round_high(schedule, sampler, delta)


def _secret_round_high(schedule: Schedule, sampler: Sampler, delta: float) -> float:
    least, _, done = _ends(schedule)
    return balls_and_bins.upper_epsilon(least, int(sampler["rounds"]), done, delta)


def _sampled(schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
    low = poisson.lower_epsilon(_grouped(schedule, least=False), sampler["rate"], delta)
    return low, _sampled_high(schedule, sampler, delta)


def _sampled_high(schedule: Schedule, sampler: Sampler, delta: float) -> float:
    return poisson.upper_epsilon(_grouped(schedule, least=True), sampler["rate"], delta)


def _moments(schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
    claimed = poisson.renyi_epsilon(schedule, sampler["rate"], delta, poisson.TF_PRIVACY_ORDERS)
    return claimed, claimed


def _whole_orders(schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
    claimed = poisson.renyi_epsilon(schedule, sampler["rate"], delta, CLAIMED_ORDERS)
    return claimed, claimed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """One way to account for one kind of sampler.

    Attributes:
        kind: the sampler it is for.
        bracket: (schedule, sampler, delta) to both ends of epsilon; the schedule is (z, rounds at it), ...
        high: the same to the high end alone, which is much cheaper where the low end takes a finer grid.
        status: "proved", or "void" where the analysis is of another mechanism than the one that ran.
        explanation: what it takes for granted.
    """

    kind: str
    bracket: Callable[[Schedule, Sampler, float], Bracket]
    high: Callable[[Schedule, Sampler, float], float]
    status: str
    explanation: str


ANALYSES = {
    "one-pass": Analysis(
        kind="one-pass",
        bracket=_one_gaussian,
        high=lambda *given: _one_gaussian(*given)[1],
        status="proved",
        explanation="disjoint batches known to the observer: each client is in one Gaussian release; exact",
    ),
    "balls-and-bins": Analysis(
        kind="balls-and-bins",
        bracket=_secret_round,
        high=_secret_round_high,
        status="proved",
        explanation="each client draws one secret round; privacy loss distribution, both directions, bracketed",
    ),
    "poisson": Analysis(
        kind="poisson",
        bracket=_sampled,
        high=_sampled_high,
        status="proved",
        explanation="each client in each round with the same chance; privacy loss distribution, bracketed",
    ),
    "poisson-lots": Analysis(
        kind="poisson-lots",
        bracket=_sampled,
        high=_sampled_high,
        status="proved",
        explanation="each record of a client in each lot with the same chance; privacy loss distribution, bracketed; "
        "no record is at two clients",
    ),
}

CLAIMS = {
    "one-pass": Analysis(
        kind="one-pass",
        bracket=_moments,
        high=lambda *given: _moments(*given)[1],
        status="void",
        explanation="the paper's: Renyi accounting of Poisson sampling at q = L/N with "
        "eps = rdp + log(1/delta)/(alpha-1); disjoint batches were run, not Poisson sampling",
    ),
    "poisson-lots": Analysis(
        kind="poisson-lots",
        bracket=_whole_orders,
        high=lambda *given: _whole_orders(*given)[1],
        status="proved",
        explanation="the paper's: Renyi accounting of Poisson sampling, orders 2 to 64, "
        "eps = rdp + log(1/delta)/(alpha-1)",
    ),
}
"""The papers' own accounting, for the samplers that have one."""


def analysis(profile: str, kind: str) -> Analysis:
    """The analysis that a profile uses for a kind of sampler.

    Args:
        profile: "as_claimed", "holds", or the name of one analysis ("one-pass", "balls-and-bins", "poisson").
        kind: the sampler's kind.

    Raises:
        BenchError: unknown names, or an analysis that is not for this sampler.
    """
    if kind not in ANALYSES:
        raise BenchError(f"no analysis for the sampler {kind!r}: there are {', '.join(ANALYSES)}")
    if profile == "holds":
        return ANALYSES[kind]
    if profile == "as_claimed":
        return CLAIMS.get(kind, ANALYSES[kind])
    if profile not in ANALYSES:
        raise BenchError(f"no accounting profile {profile!r}: there are as_claimed, holds, {', '.join(ANALYSES)}")
    if profile != kind:
        raise BenchError(f"the {profile} analysis is not for a {kind} sampler: use holds")
    return ANALYSES[profile]


def _checked(noise_multiplier: float, delta: float) -> None:
    if not 0 < delta < 1:
        raise BenchError(f"delta is {delta}: it must lie between 0 and 1")
    if not 0 < noise_multiplier < math.inf:
        raise BenchError(f"the noise multiplier is {noise_multiplier}: it must be finite and above 0")


@functools.lru_cache(maxsize=4096)
def _high(profile: str, kind: str, schedule: Schedule, rate: float, rounds: int, delta: float) -> float:
    return analysis(profile, kind).high(schedule, {"rate": rate, "rounds": rounds}, delta)


def epsilon_after(profile: str, sampler: Sampler, noise_multiplier: float, done: int, delta: float) -> float:
    """Epsilon (its high end) after `done` of the sampler's planned rounds; 0 before the first. Cached.

    Raises:
        BenchError: z or delta out of bounds, or a profile that does not fit the sampler.
    """
    _checked(noise_multiplier, delta)
    chosen = analysis(profile, sampler["kind"])
    if done == 0:
        return 0.0
    schedule = ((float(noise_multiplier), int(done)),)
    return _high(profile, chosen.kind, schedule, float(sampler["rate"]), int(sampler["rounds"]), float(delta))


def rounds_allowed(profile: str, sampler: Sampler, noise_multiplier: float, delta: float, epsilon: float) -> int:
    """The most rounds, up to those planned, after which epsilon is still within the budget."""
    within, beyond = 0, int(sampler["rounds"]) + 1
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if epsilon_after(profile, sampler, noise_multiplier, middle, delta) <= epsilon:
            within = middle
        else:
            beyond = middle
    return within


def calibrate(profile: str, sampler: Sampler, epsilon: float, delta: float) -> float:
    """The smallest noise multiplier with which all planned rounds stay within (epsilon, delta).

    Rounded up to four significant digits, so that a run's configuration can name it.

    Raises:
        BenchError: no multiplier from 0.05 to 10,000 is enough.
    """
    if not 0 < epsilon < math.inf:
        raise BenchError(f"budget.epsilon is {epsilon}: it must be finite and above 0")
    rounds = int(sampler["rounds"])

    def enough(z: float) -> bool:
        return epsilon_after(profile, sampler, z, rounds, delta) <= epsilon

    low, high = 0.05, 1.0
    while not enough(high):
        low, high = high, high * 2
        if high > 10_000:
            raise BenchError(f"no noise multiplier up to 10,000 meets epsilon {epsilon} at delta {delta}: raise one")
    while high / low > 1 + 1e-5:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    scale = 10.0 ** (math.floor(math.log10(high)) - 3)
    rounded = math.ceil(high / scale - 1e-9) * scale
    return float(f"{rounded:.6g}")


def _check_release(event: Release, first: Release, where: str) -> None:
    if event.sampler != first.sampler or (event.unit, event.adjacency) != (first.unit, first.adjacency):
        raise BenchError(f"{where} has another sampler, unit or adjacency than the first: account for them apart")
    if event.adjacency != "zero-out":
        raise BenchError(f"{where} is for {event.adjacency} adjacency: the analyses here are for zero-out")
    z = event.noise_multiplier
    each = (np.atleast_1d(value) for value in (event.threshold, event.sensitivity, event.noise_std))
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


def _rounds_of(releases: Sequence[Release]) -> list[list[Release]]:
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


def _schedule(rounds: Sequence[Sequence[Release]], *, counted: Callable[[Release], bool]) -> Schedule:
    """(z, rounds at it), ... in order, of the releases that are counted; those of one round as one Gaussian."""
    found: dict[float, int] = {}
    for events in rounds:
        parts = [event.noise_multiplier for event in events if counted(event)]
        z = parts[0] if len(parts) == 1 else joint_multiplier(parts)
        found[z] = found.get(z, 0) + 1
    return tuple(found.items())


def joint_multiplier(multipliers: Sequence[float]) -> float:
    """The multiplier of several Gaussian releases of one cohort, as one: (sum of z^-2)^-1/2."""
    return math.fsum(z**-2 for z in multipliers) ** -0.5


def account(releases: Sequence[Release], *, delta: float) -> dict[str, Any]:
    """Both profiles of a run's releases, as in privacy.json.

    Multipliers may differ between rounds: sampled lots and cohorts are composed as they were, near multipliers put
    together on the safe side; one pass is exact, since the client of the least noisy round is the worst off; for
    balls-and-bins the high end takes the smallest for all rounds and the low end the largest.

    Args:
        releases: the run's ledger; empty for a run that released nothing under privacy.
        delta: at which epsilon is given.

    Raises:
        BenchError: an inconsistent ledger, or delta out of bounds.
    """
    if not 0 < delta < 1:
        raise BenchError(f"delta is {delta}: it must lie between 0 and 1")
    if not releases:
        return {
            "delta": delta,
            "rounds": 0,
            "unit": None,
            "profiles": {},
            "reason": "no release claims privacy",
        }
    rounds = _rounds_of(releases)
    first, sampler = releases[0], releases[0].sampler
    uncounted = {event.reason: event for event in reversed(releases) if event.data_dependent_threshold}
    missing = "; ".join(f"{event.name} from round {event.round}, {reason}" for reason, event in uncounted.items())
    forgotten = sorted({event.name for event in releases} & UNCOUNTED)
    schedules = {
        "as_claimed": _schedule(rounds, counted=lambda event: event.name not in UNCOUNTED),
        "holds": _schedule(rounds, counted=lambda event: True),
    }
    profiles = {}
    for profile, schedule in schedules.items():
        chosen = analysis(profile, sampler["kind"])
        low, high = chosen.bracket(schedule, sampler, delta)
        status, explanation = chosen.status, chosen.explanation
        if len(schedule) > 1 and status == "proved":
            status = "as run"
            explanation += (
                "; the noise followed a public loss of released models: this is of the schedule that was run, "
                "and does not cover the choice of it"
            )
        if forgotten and profile == "as_claimed":
            status, explanation = "void", f"{explanation}; the paper does not count the release {', '.join(forgotten)}"
        if uncounted:
            status = "void"
            explanation = f"a release without an event: {missing}"
        if uncounted and profile == "holds":
            low = high = math.inf
        profiles[profile] = {
            "epsilon_low": low,
            "epsilon_high": high,
            "delta": delta,
            "unit": first.unit,
            "adjacency": first.adjacency,
            "observer": first.observer,
            "status": status,
            "explanation": explanation,
        }
    units = sampler.get("records", sampler["clients"])
    notices = []
    if delta * units >= 1:
        notices.append(f"delta {delta:g} is not below 1/{units}, one over the number of {first.unit}s")
    return {
        "delta": delta,
        "unit": first.unit,
        "rounds": len(rounds),
        "noise_multiplier": _ends(schedules["as_claimed"])[0],
        "sampler": dict(sampler),
        "profiles": profiles,
        "notices": notices,
    }


def account_run(run_dir: Path | str, out_path: Path | str) -> None:
    """Read a finished run's ledger and write its privacy.json.

    Raises:
        BenchError: the ledger is missing, damaged or inconsistent, or a private run's is empty.
    """
    run_dir = Path(run_dir)
    config = RunConfig.from_yaml(run_dir / "config.yaml")
    releases = read_ledger(run_dir / "ledger.jsonl")
    if config.private and not releases:
        raise BenchError(f"{run_dir / 'ledger.jsonl'} is empty, but {config.method} is private: train the run again")
    if releases and not config.private:
        raise BenchError(f"{run_dir / 'ledger.jsonl'} has releases, but {config.method} claims no privacy")
    write_json(out_path, account(releases, delta=config.budget.delta if config.budget else 1e-6))
