"""The audit of a finished run: from its configuration and its ledger to audit.json."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.accounting import analyses
from dpfedbench.accounting.analyses import own_records
from dpfedbench.accounting.gaussian import gaussian_epsilon, joint_multiplier
from dpfedbench.audit.bounds import (
    Bound,
    Curves,
    Family,
    Gaussian,
    clopper_pearson,
    gaussian_shift,
    guess_surest,
    one_run_dp,
    one_run_f_dp,
)
from dpfedbench.audit.canaries import Found, audit_seed, one_own_run, one_run
from dpfedbench.audit.mechanisms import raw_norm_audit
from dpfedbench.config import RunConfig
from dpfedbench.errors import BenchError
from dpfedbench.federation.progress import Progress
from dpfedbench.files import write_json
from dpfedbench.privacy.clipping import make_rule
from dpfedbench.privacy.ledger import Release, check_same_mechanism, read_ledger
from dpfedbench.randomness import stream

CANARIES = 4000
CONFIDENCE = 0.95
RUNS = 500

_SMALLEST = 0.05
"""The smallest noise multiplier for which sampled mechanisms are accounted for."""


def _by_round(releases: Sequence[Release]) -> list[list[Release]]:
    rounds: list[list[Release]] = []
    for event in releases:
        if event.round == len(rounds):
            rounds.append([])
        if event.round != len(rounds) - 1:
            raise BenchError(f"the ledger jumps to round {event.round}: delete the run's folder and train again")
        rounds[-1].append(event)
    return rounds


def _multiplier(events: Sequence[Release]) -> float:
    """Of a round's releases as one."""
    return events[0].noise_multiplier if len(events) == 1 else joint_multiplier([e.noise_multiplier for e in events])


def family_of(releases: Sequence[Release]) -> Family:
    """The mechanisms of the ledger's sampler with its noise made larger or smaller: what its analysis justifies.

    A leak of 1 is the noise of the ledger; for one pass, a leak is sensitivity over noise deviation.
    """
    sampler, found = releases[0].sampler, dict[float, int]()
    analysis = analyses.of(releases)
    if analysis.known:
        return Gaussian()
    for events in _by_round(releases):
        z = _multiplier(events)
        found[z] = found.get(z, 0) + 1

    def epsilon(leak: float, delta: float) -> float:
        schedule = tuple((z / leak, count) for z, count in found.items())
        return analysis.high(schedule, sampler, delta)

    return Curves(f"{sampler['kind']} with any noise", epsilon, min(found) / _SMALLEST)


def bounds_of(found: Found, family: Family, *, delta: float, confidence: float, seed: int) -> list[Bound]:
    """All one-run bounds of an experiment, the headline first.

    Args:
        found: the experiment.
        family: for the f-DP bound.
        delta, confidence: of the bounds, each by itself.
        seed: for the split.
    """
    coins, scores, sums = found.coins, found.scores, found.sums
    guesses = guess_surest(scores, coins, secret=not analyses.of(found.releases).known)
    return [
        one_run_f_dp(guesses, family, delta=delta, confidence=confidence),
        one_run_dp(guesses, delta=delta, confidence=confidence),
        gaussian_shift(sums[coins], sums[~coins], delta=delta, confidence=confidence),
        clopper_pearson(
            scores[coins], scores[~coins], delta=delta, confidence=confidence, generator=stream(seed, "audit-split")
        ),
    ]


def audit(
    config: RunConfig,
    releases: Sequence[Release],
    *,
    canaries: int = CANARIES,
    confidence: float = CONFIDENCE,
    runs: int = RUNS,
) -> dict[str, Any]:
    """The audit of one run, as in audit.json.

    Args:
        config: the run.
        releases: its ledger.
        canaries: m at most; clients keep a quarter that are ordinary.
        confidence: of each bound by itself. The headline is fixed beforehand: one-run f-DP, or many runs where the
            threshold reads raw norms.
        runs: runs a world of the latter.

    Raises:
        BenchError: a private run without releases, or a ledger of another mechanism than the code's.
    """
    started = time.monotonic()
    names = ("torch", "numpy", "scipy", "numba")
    versions = {name: importlib.metadata.version(name) for name in names} | {"python": platform.python_version()}
    if not config.private:
        return {
            "epsilon": None, "method": None, "reason": "no release claims privacy", "status": "nothing to audit",
            "versions": versions,
        }  # fmt: skip
    if not releases:
        raise BenchError(f"the ledger is empty, but {config.method} is private: train the run again")
    own = [event for event in releases if event.sampler["kind"] == own_records.KIND]
    releases = [event for event in releases if event.sampler["kind"] != own_records.KIND]
    parts = []
    if releases:
        parts.append(_audit_served(config, releases, canaries=canaries, confidence=confidence, runs=runs))
    if own:
        parts.append(_audit_own(config, own, canaries=canaries, confidence=confidence))
    both = len(parts) == 2 and (parts[0]["unit"], parts[0]["observer"]) == (parts[1]["unit"], parts[1]["observer"])
    if both:
        # A unit is in the releases of one or of the other; what refutes either refutes the claim.
        parts = sorted(parts, key=lambda part: -1.0 if part["epsilon"] is None else -part["epsilon"])
    found = parts[0] | {"seconds": round(time.monotonic() - started, 2), "versions": versions}
    return found | ({"also": parts[1:]} if parts[1:] else {})


def _audit_own(config: RunConfig, releases: Sequence[Release], *, canaries: int, confidence: float) -> dict[str, Any]:
    """The audit of the private sums that few-shot clients take over their own examples."""
    assert config.local is not None
    delta, seed = config.local.delta, audit_seed(config, 1)
    found = one_own_run(config, seed=seed, canaries=canaries)
    check_same_mechanism([event for event in releases if event.round == 0], found.releases)
    bounds = bounds_of(found, Gaussian(), delta=delta, confidence=confidence, seed=seed)
    holds = gaussian_epsilon(min(own_records.joint([event]) for event in releases), delta)
    return _entry(bounds, releases[0], holds, delta=delta, confidence=confidence) | {
        "canaries": len(found.coins), "rounds": 1, "clients_audited": found.holders,
    }  # fmt: skip


def _audit_served(
    config: RunConfig, releases: Sequence[Release], *, canaries: int, confidence: float, runs: int
) -> dict[str, Any]:
    """The audit of the server's private sum, or of those of clients that hold records."""
    assert config.budget is not None and config.clipping is not None
    first, delta, seed = releases[0], config.budget.delta, audit_seed(config)
    rounds = _by_round(releases)
    steps = config.client_update.inner_steps if config.by_record else 1
    threshold = float(np.atleast_1d(first.threshold)[0])
    records = int(first.sampler.get("records", 0))
    # A client or record that is a canary is not an ordinary one, and there should be both.
    most = records * config.clients.count if config.by_record else config.clients.count
    found = one_run(
        config, seed=seed, canaries=min(canaries, 3 * most // 4), rounds=len(rounds) // steps, threshold=threshold,
        records=records, multipliers=[events[0].noise_multiplier for events in rounds][::steps],
        progress=Progress(f"audit {config.folder}", len(rounds) // steps, unit="rounds"),
    )  # fmt: skip
    check_same_mechanism(releases, found.releases)
    family = family_of(releases)
    bounds = bounds_of(found, family, delta=delta, confidence=confidence, seed=seed)
    rule = make_rule(config.clipping, first=threshold)
    if rule.reads_raw_norms:
        leak = raw_norm_audit(config, records=records, first=threshold, delta=delta, confidence=confidence, runs=runs)
        bounds = [leak, *bounds] if not math.isnan(leak.epsilon) else [*bounds, leak]
    holds = math.inf if not rule.private else family.epsilon(_as_run(family, rounds), delta)
    return _entry(bounds, first, holds, delta=delta, confidence=confidence) | {
        "canaries": len(found.coins),
        "rounds": len(rounds),
        "clients_audited": found.holders if config.by_record else None,
    }


def _entry(bounds: Sequence[Bound], first: Release, holds: float, *, delta: float, confidence: float) -> dict[str, Any]:
    """What audit.json says of one mechanism."""
    headline = bounds[0]
    return {
        "epsilon": headline.epsilon,
        "method": headline.name,
        "assumes": headline.assumes,
        "reason": headline.reason,
        "confidence": confidence,
        "delta": delta,
        "unit": first.unit,
        "adjacency": first.adjacency,
        "observer": first.observer,
        "knows": _knows(first),
        "status": _status(headline, holds),
        "epsilon_holds": holds,
        "bounds": [_plain(bound) for bound in bounds],
    }


def _as_run(family: Family, rounds: Sequence[Sequence[Release]]) -> float:
    """The leak of the ledger's own noise."""
    if isinstance(family, Curves):
        return 1.0
    return max(1 / _multiplier(events) for events in rounds)


def _knows(first: Release) -> str:
    told = "the releases, thresholds, noise multipliers and the canaries' directions, not the noise seed"
    if analyses.of([first]).known:
        return f"{told}; who is in which block"
    return f"{told}, nor who takes part when"


def _status(headline: Bound, holds: float) -> str:
    if headline.epsilon > holds:
        return (
            f"ABOVE what holds ({holds:.4g}): the mechanism leaks more than its account says, or chance (at most "
            "one in twenty)"
        )
    return f"not above what holds ({holds:.4g}); a lower bound against one adversary, not a proof of privacy"


def _plain(bound: Bound) -> dict[str, Any]:
    values = dataclasses.asdict(bound)
    return values | {"epsilon": None if math.isnan(bound.epsilon) else bound.epsilon}


def audit_run(run_dir: Path | str, out_path: Path | str) -> None:
    """Audit a finished run's mechanism and write its audit.json.

    Raises:
        BenchError: the ledger is missing, damaged, or of another mechanism than the code's.
    """
    run_dir = Path(run_dir)
    config = RunConfig.from_yaml(run_dir / "config.yaml")
    write_json(out_path, audit(config, read_ledger(run_dir / "ledger.jsonl")))
