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

from dpfedbench.accounting.account import others, seen_by
from dpfedbench.accounting.analyses import find, of, own_records
from dpfedbench.accounting.analyses.base import rounds_of, schedule_of
from dpfedbench.accounting.gaussian import gaussian_epsilon, joint_multiplier
from dpfedbench.audit.attacks import leak_of
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
from dpfedbench.audit.canaries import Found, audit_seed, extra_of, lines_of, one_own_run, one_run
from dpfedbench.audit.own_updates import one_update_run
from dpfedbench.audit.units import ORDINARY
from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import ledger_of
from dpfedbench.files import write_json
from dpfedbench.methods import read_run_file
from dpfedbench.methods.method import Method
from dpfedbench.parts.sum import Sum
from dpfedbench.privacy.ledger import Release, check_same_mechanism
from dpfedbench.progress import Progress
from dpfedbench.randomness import stream

CANARIES = 4000
CONFIDENCE = 0.95
RUNS = 500

_SMALLEST = 0.05
"""The smallest noise multiplier for which sampled mechanisms are accounted for."""


def family_of(releases: Sequence[Release]) -> Family:
    """The mechanisms of the ledger's sampler with its noise made larger or smaller: what its analysis justifies.

    A leak of 1 is the noise of the ledger; where the observer knows who is in which release, a leak is sensitivity over
    noise deviation.

    Raises:
        BenchError: there is no analysis, or the ledger is damaged.
    """
    sampler, analysis = releases[0].sampler, of(releases)
    if analysis.known:
        return Gaussian()
    schedule = schedule_of(rounds_of(releases))

    def epsilon(leak: float, delta: float) -> float:
        return analysis.high(tuple((z / leak, count) for z, count in schedule), sampler, delta)

    return Curves(f"{sampler['kind']} with any noise", epsilon, min(z for z, _ in schedule) / _SMALLEST)


def bounds_of(found: Found, family: Family, *, delta: float, confidence: float, seed: int) -> list[Bound]:
    """All one-run bounds of an experiment, the headline first.

    Args:
        found: the experiment.
        family: for the f-DP bound.
        delta, confidence: of the bounds, each by itself.
        seed: for the split.
    """
    coins, scores, sums = found.coins, found.scores, found.sums
    guesses = guess_surest(scores, coins, secret=not of(found.releases).known)
    return [
        one_run_f_dp(guesses, family, delta=delta, confidence=confidence),
        one_run_dp(guesses, delta=delta, confidence=confidence),
        gaussian_shift(sums[coins], sums[~coins], delta=delta, confidence=confidence),
        clopper_pearson(
            scores[coins], scores[~coins], delta=delta, confidence=confidence, generator=stream(seed, "audit-split")
        ),
    ]


def audit(
    run: Method,
    releases: Sequence[Release],
    *,
    canaries: int = CANARIES,
    confidence: float = CONFIDENCE,
    runs: int = RUNS,
) -> dict[str, Any]:
    """The audit of one run, as in audit.json.

    Args:
        run: the run.
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
    nothing: dict[str, Any] = {"epsilon": None, "method": None, "status": "nothing to audit", "versions": versions}
    if not run.private:
        return nothing | {"reason": "no release claims privacy"}
    if not releases:
        raise BenchError(f"the ledger is empty, but {run.method} is private: train the run again")
    try:
        for pair in {(event.mechanism, event.sampler["kind"]) for event in releases}:
            find(*pair)
    except BenchError as error:
        return nothing | {"reason": str(error)}
    lines = [(sum_, lines_of(sum_, releases)) for sum_ in run.sums if sum_.private]
    if not all(own for _, own in lines) or sum(len(own) for _, own in lines) != len(releases):
        raise BenchError(
            f"the ledger has releases of {', '.join(sorted({event.name for event in releases}))}, the code as it is "
            f"now of {', '.join(sorted(sum_.name for sum_, _ in lines))}: train the run again"
        )
    parts = [
        _audit_served(run, sum_, own, canaries=canaries, confidence=confidence, runs=runs, seen=seen)
        for sum_, own in lines
        if sum_.within_task is None
        for seen in ("", *others(own))
    ]
    updates = [(sum_, own) for sum_, own in lines if sum_.within_task is not None and sum_.unit == "client"]
    parts += [_audit_update(run, sum_, own, canaries=canaries, confidence=confidence) for sum_, own in updates]
    within = {sum_.name for sum_, _ in lines if sum_.within_task is not None and sum_.unit == "record"}
    if within:
        own = [event for event in releases if event.name in within]
        parts.append(_audit_own(run, own, canaries=canaries, confidence=confidence))
    if len({(part["unit"], part["observer"]) for part in parts}) == 1:
        # A unit is in the releases of one or of the other; what refutes either refutes the claim.
        parts.sort(key=lambda part: -1.0 if part["epsilon"] is None else -part["epsilon"])
    if len(parts) > 2:
        # Of each observer the worst: first the sums' own, then the others'.
        worst = sorted(parts, key=lambda part: -1.0 if part["epsilon"] is None else -part["epsilon"])
        parts = list({(part["unit"], part["observer"]): part for part in reversed(worst)}.values())
        parts.sort(key=lambda part: part["observer"] != releases[0].observer)
    found = parts[0] | {"seconds": round(time.monotonic() - started, 2), "versions": versions}
    return found | ({"also": parts[1:]} if parts[1:] else {})


def _audit_own(run: Method, releases: Sequence[Release], *, canaries: int, confidence: float) -> dict[str, Any]:
    """The audit of the private sums that few-shot clients take over their own examples."""
    delta, seed = run.own_delta, audit_seed(run, 1)
    assert delta is not None
    found = one_own_run(run, seed=seed, canaries=canaries)
    check_same_mechanism([event for event in releases if event.round == 0], found.releases)
    bounds = bounds_of(found, own_family(releases), delta=delta, confidence=confidence, seed=seed)
    least = {event.name: event for event in sorted(releases, key=lambda event: -event.noise_multiplier)}
    holds = max(own_records.epsilon_of(one.sampler, one.noise_multiplier, delta) for one in least.values())
    return _entry(bounds, releases[0], holds, delta=delta, confidence=confidence) | {
        "canaries": len(found.coins), "rounds": 1, "clients_audited": found.holders,
    }  # fmt: skip


def own_family(releases: Sequence[Release]) -> Family:
    """As `family_of`, of the releases that few-shot clients make over their own examples."""
    first, analysis = releases[0], of(releases)
    if analysis.known:
        return Gaussian()

    def epsilon(leak: float, delta: float) -> float:
        return own_records.epsilon_of(first.sampler, first.noise_multiplier / leak, delta)

    return Curves(f"{first.sampler['kind']} with any noise", epsilon, first.noise_multiplier / _SMALLEST)


def _audit_update(
    run: Method, sum_: Sum, releases: Sequence[Release], *, canaries: int, confidence: float
) -> dict[str, Any]:
    """The audit of the private sum of a client over its own update."""
    delta, seed = sum_.delta, audit_seed(run, 2)
    assert delta is not None
    found = one_update_run(run, seed=seed, canaries=canaries)
    check_same_mechanism([event for event in releases if event.round == 0], found.releases)
    bounds = bounds_of(found, Gaussian(), delta=delta, confidence=confidence, seed=seed)
    holds = gaussian_epsilon(min(event.noise_multiplier for event in releases), delta)
    return _entry(bounds, releases[0], holds, delta=delta, confidence=confidence) | {
        "canaries": len(found.coins), "rounds": 1, "clients_audited": found.holders,
    }  # fmt: skip


def _audit_served(
    run: Method, sum_: Sum, releases: Sequence[Release], *, canaries: int, confidence: float, runs: int, seen: str = ""
) -> dict[str, Any]:
    """The audit of the server's private sum, or of those of clients that hold records; as `seen` by somebody else."""
    loop, rule, delta, seed = run.loop(), sum_.clipping, sum_.delta, audit_seed(run)
    assert loop is not None and rule is not None and delta is not None
    first, rounds, own = releases[0], rounds_of(releases), sum_ in loop.own
    steps = int(first.sampler["rounds"]) // loop.participation.rounds
    threshold, records = float(np.atleast_1d(first.threshold)[0]), int(first.sampler.get("records", 0))
    # A client or record that is a canary is not an ordinary one, and there should be both.
    most = records * run.clients.count if own else run.clients.count
    dimension = first.dimension if sum_.noise is not None and sum_.noise.by_dimension else None
    if dimension is not None:
        canaries = min(canaries, dimension - ORDINARY)
    found = one_run(
        run, sum_, seed=seed, canaries=min(canaries, 3 * most // 4), dimension=dimension,
        rounds=len(rounds) // steps, threshold=threshold, records=records, steps=steps,
        added=others(releases).get(seen, 0),
        multipliers=[_charged(sum_, threshold, events) for events in rounds][::steps],
        progress=Progress(f"audit {run.folder}", len(rounds) // steps, unit="rounds"),
    )  # fmt: skip
    check_same_mechanism(releases, found.releases)
    if seen:
        releases = [seen_by(event, others(releases)[seen], seen) for event in releases]
        first, rounds = releases[0], rounds_of(releases)
        found = dataclasses.replace(found, releases=releases)
    family = family_of(releases)
    bounds = bounds_of(found, family, delta=delta, confidence=confidence, seed=seed)
    if not rule.private and not rule.reference:  # what comes from another run does not leak from round to round
        leak = leak_of(run, rule, records=records, first=threshold, delta=delta, confidence=confidence, runs=runs)
        bounds = [leak, *bounds] if not math.isnan(leak.epsilon) else [*bounds, leak]
    # The leak of the ledger's own noise.
    one = None if isinstance(family, Curves) else of(releases).as_one(schedule_of(rounds))
    leaks = 1.0 if one is None else 1 / one
    holds = family.epsilon(leaks, delta) if rule.private else math.inf
    return _entry(bounds, first, holds, delta=delta, confidence=confidence) | {
        "canaries": len(found.coins), "rounds": len(rounds), "clients_audited": found.holders if own else None,
    }  # fmt: skip


def _charged(sum_: Sum, threshold: float, events: Sequence[Release]) -> float:
    """The multiplier that a round was charged for: the sum's, or of all releases if the rule's is paid out of it."""
    extra = extra_of(sum_, threshold)
    within = extra is not None and extra.within
    return joint_multiplier([event.noise_multiplier for event in events]) if within else events[0].noise_multiplier


def _entry(bounds: Sequence[Bound], first: Release, holds: float, *, delta: float, confidence: float) -> dict[str, Any]:
    """What audit.json says of one mechanism; `holds` is infinite where something released has no event."""
    headline, holds = bounds[0], math.inf if first.data_dependent_threshold else holds
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


def _knows(first: Release) -> str:
    told = "the releases, thresholds, noise multipliers and the canaries' directions, not the noise seed"
    if of([first]).known:
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
        BenchError: the ledger is missing, damaged, or of another mechanism than the configuration's or the code's.
    """
    run_dir = Path(run_dir)
    run = read_run_file(run_dir / "config.yaml")
    write_json(out_path, audit(run, ledger_of(run, run_dir)))
