"""Accountants: from what was released, and how its cohort was drawn, to epsilon.

Two profiles:

- `as_claimed`: the accounting that the run's paper did. DP-FedMeta and DP-MAML run disjoint blocks over one pass and
  account for Poisson sampling at q = L/N by TensorFlow Privacy's moments accountant. For a sampler that no paper
  accounts for wrongly (balls-and-bins, Poisson: our repaired variants), the claim is what holds.
- `holds`: what the sampler and the observer justify. `ANALYSES` has one analysis a sampler:

  | sampler | analysis | guarantee |
  |---|---|---|
  | one-pass | blocks known to the observer: a client is in one Gaussian release, the rest follows from it | exact |
  | balls-and-bins | each client draws one secret round (Chua et al. 2024), by its privacy loss distribution | bracket |
  | poisson | composed sampled Gaussians, by their privacy loss distribution | bracket |

An analysis that does not fit the sampler raises; it never prints a number. All are for zero-out adjacency, with the
sensitivity that the ledger states. Brackets are proved: the low end is below, the high end above the exact epsilon.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedbench.config import RunConfig
from dpfedbench.errors import BenchError
from dpfedbench.files import write_json
from dpfedbench.privacy import balls_and_bins, poisson
from dpfedbench.privacy.gaussian import gaussian_epsilon
from dpfedbench.privacy.ledger import Release, read_ledger

Sampler = Mapping[str, Any]
"""A participation plan's description: kind, clients, cohort, rounds, rate."""

Bracket = tuple[float, float]
"""Low and high end of epsilon."""


def _one_gaussian(z: float, rate: float, rounds: int, done: int, delta: float) -> Bracket:
    exact = gaussian_epsilon(z, delta)
    return exact, exact


def _secret_round(z: float, rate: float, rounds: int, done: int, delta: float) -> Bracket:
    return (
        balls_and_bins.lower_epsilon(z, rounds, done, delta),
        balls_and_bins.upper_epsilon(z, rounds, done, delta),
    )


def _secret_round_high(z: float, rate: float, rounds: int, done: int, delta: float) -> float:
    return balls_and_bins.upper_epsilon(z, rounds, done, delta)


def _sampled(z: float, rate: float, rounds: int, done: int, delta: float) -> Bracket:
    return poisson.lower_epsilon(((z, done),), rate, delta), _sampled_high(z, rate, rounds, done, delta)


def _sampled_high(z: float, rate: float, rounds: int, done: int, delta: float) -> float:
    return poisson.upper_epsilon(((z, done),), rate, delta)


def _moments(z: float, rate: float, rounds: int, done: int, delta: float) -> Bracket:
    claimed = poisson.renyi_epsilon(((z, done),), rate, delta, poisson.TF_PRIVACY_ORDERS)
    return claimed, claimed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """One way to account for one kind of sampler.

    Attributes:
        kind: the sampler it is for.
        bracket: (z, rate, rounds planned, rounds done, delta) to both ends of epsilon.
        high: the same to the high end alone, which is much cheaper where the low end takes a finer grid.
        status: "proved", or "void" where the analysis is of another mechanism than the one that ran.
        explanation: what it takes for granted.
    """

    kind: str
    bracket: Callable[[float, float, int, int, float], Bracket]
    high: Callable[[float, float, int, int, float], float]
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
}

CLAIMED_FOR_ONE_PASS = Analysis(
    kind="one-pass",
    bracket=_moments,
    high=lambda *given: _moments(*given)[1],
    status="void",
    explanation="the paper's: Renyi accounting of Poisson sampling at q = L/N with eps = rdp + log(1/delta)/(alpha-1); "
    "disjoint batches were run, not Poisson sampling",
)


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
        return CLAIMED_FOR_ONE_PASS if kind == "one-pass" else ANALYSES[kind]
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
def _high(profile: str, kind: str, z: float, rate: float, rounds: int, done: int, delta: float) -> float:
    return analysis(profile, kind).high(z, rate, rounds, done, delta)


def epsilon_after(profile: str, sampler: Sampler, noise_multiplier: float, done: int, delta: float) -> float:
    """Epsilon (its high end) after `done` of the sampler's planned rounds; 0 before the first. Cached.

    Raises:
        BenchError: z or delta out of bounds, or a profile that does not fit the sampler.
    """
    _checked(noise_multiplier, delta)
    chosen = analysis(profile, sampler["kind"])
    if done == 0:
        return 0.0
    return _high(
        profile,
        chosen.kind,
        float(noise_multiplier),
        float(sampler["rate"]),
        int(sampler["rounds"]),
        int(done),
        float(delta),
    )


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


def _sampler_of(releases: Sequence[Release]) -> Sampler:
    """The one sampler of a ledger, after checking that the ledger is one mechanism's.

    Raises:
        BenchError: rounds are missing, doubled or out of order, samplers differ, or noise does not fit z and C.
    """
    first = releases[0]
    for expected, event in enumerate(releases):
        where = f"the ledger's release {expected}"
        if event.round != expected:
            raise BenchError(f"{where} is of round {event.round}: delete the run's folder and train again")
        if event.sampler != first.sampler or (event.unit, event.adjacency) != (first.unit, first.adjacency):
            raise BenchError(f"{where} has another sampler, unit or adjacency than the first: account for them apart")
        if event.adjacency != "zero-out":
            raise BenchError(f"{where} is for {event.adjacency} adjacency: the analyses here are for zero-out")
        if not (0 < event.noise_multiplier < math.inf and 0 < event.threshold < math.inf):
            raise BenchError(f"{where} has z {event.noise_multiplier} and C {event.threshold}: both must be above 0")
        if event.sensitivity < event.threshold:
            raise BenchError(
                f"{where} declares sensitivity {event.sensitivity}, less than its threshold {event.threshold}: "
                "its mechanism is not the one accounted for"
            )
        if not math.isclose(event.noise_std, event.noise_multiplier * event.sensitivity, rel_tol=1e-12):
            raise BenchError(
                f"{where} has noise of deviation {event.noise_std}, not z x sensitivity = "
                f"{event.noise_multiplier * event.sensitivity}: its mechanism is not the one accounted for"
            )
    if len(releases) > first.sampler["rounds"]:
        raise BenchError(f"the ledger has {len(releases)} rounds, its sampler plans {first.sampler['rounds']}")
    return first.sampler


def account(releases: Sequence[Release], *, delta: float) -> dict[str, Any]:
    """Both profiles of a run's releases, as in privacy.json.

    With multipliers that differ between rounds, the high end takes the smallest for all of them and the low end the
    largest; one pass is exact, since the client of the least noisy round is the worst off.

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
    sampler, first = _sampler_of(releases), releases[0]
    multipliers = [event.noise_multiplier for event in releases]
    z = min(multipliers)
    # The least noise in all rounds is an upper end. With one pass it is also the worst-off client's own.
    most = z if sampler["kind"] == "one-pass" else max(multipliers)
    uncounted = {event.reason: event for event in reversed(releases) if event.data_dependent_threshold}
    missing = "; ".join(f"{event.name} from round {event.round}, {reason}" for reason, event in uncounted.items())
    profiles = {}
    for profile in ("as_claimed", "holds"):
        chosen = analysis(profile, sampler["kind"])
        low, high = chosen.bracket(z, sampler["rate"], sampler["rounds"], len(releases), delta)
        if most != z:
            low, _ = chosen.bracket(most, sampler["rate"], sampler["rounds"], len(releases), delta)
        status, explanation = chosen.status, chosen.explanation
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
    notices = []
    if delta * sampler["clients"] >= 1:
        notices.append(f"delta {delta:g} is not below 1/{sampler['clients']}, one over the number of clients")
    return {
        "delta": delta,
        "unit": first.unit,
        "rounds": len(releases),
        "noise_multiplier": z,
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
