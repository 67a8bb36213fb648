"""Audit of a finished run: from its configuration and its ledger to audit.json."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.audit.attacks import leak_of
from dpfedbench.audit.canaries import (
    CanaryExperiment,
    audit_seed,
    extra_of,
    lines_of,
    one_run,
)
from dpfedbench.audit.own_sums import one_run_of_examples, one_run_of_updates
from dpfedbench.audit.units import ORDINARY
from dpfedbench.errors import BenchError
from dpfedbench.files import write_json
from dpfedbench.models.kernels import versions_of
from dpfedbench.papers import read_run_file
from dpfedbench.parts.clipping.reference import MedianOfRun
from dpfedbench.run import Run
from dpfedbench.training.accounts import ledger_of
from dploss.gaussian import joint_multiplier
from dpsum.accounting.account import further_observers, seen_by
from dpsum.accounting.accountant import rounds_of, schedule_of
from dpsum.accounting.analyses import find, of, within_task
from dpsum.audit.bounds import Bound, clopper_pearson, guess_surest, one_run_dp
from dpsum.audit.ranks import Family, rank_test
from dpsum.ledger import Release, check_same_mechanism
from dpsum.progress import Progress
from dpsum.randomness import stream
from dpsum.sums import SumSpec

CANARIES = 4000
_MORE = 4
"""Factor on the number of canaries in all experiments together for secret entry.

If clients enter secretly, each canary reveals little.
"""

_WORK = 200_000_000
"""Work up to which there is more than one experiment.

It is the product of canaries and contributions, added up over all experiments.
"""

_REPEATS = 500
"""Largest number of experiments.

Only federations of fewer than 43 clients would have more. An experiment takes some
milliseconds a round, however few clients it has.
"""

_LEAST = 500
"""Least number of canaries per experiment, for any number of coordinate groups."""

CONFIDENCE = 0.95
RUNS = 500

_CHANCE = 1e-3
"""Probability above which a result of correct code may be chance.

A whole run has about a hundred audits.
"""

_ANOTHER = 1e-4
"""Approximate probability that correct code is reported as another mechanism.

This happens in one of a hundred whole runs.
"""


def family_of(releases: Sequence[Release]) -> Family:
    """Return the mechanisms of the ledger's sampler, with noise scaled up or down.

    They are those that the sampler's analysis covers.

    Raises:
        BenchError: there is no analysis, or the ledger is damaged.
    """
    analysis = of(releases)
    return Family(
        analysis,
        schedule_of(rounds_of(releases, analysis.adjacency)),
        analysis.read(releases).sampling,
    )


def bounds_of(
    experiment: CanaryExperiment,
    family: Family,
    *,
    delta: float,
    confidence: float,
    seed: int,
) -> list[Bound]:
    """Return all one-run bounds of an experiment, the headline first.

    Each bound holds by itself at this delta and confidence. The f-DP bound is for the
    family. The seed determines its draws, and the split of another bound.
    """
    coins = experiment.coins
    scores = experiment.scores
    guesses = guess_surest(scores, coins, secret=not of(experiment.releases).known)
    ranked = rank_test(
        scores,
        coins,
        family,
        delta=delta,
        confidence=confidence,
        generator=stream(seed, "audit-rank-test"),
        ideal=experiment.ideal,
    )
    return [
        ranked,
        one_run_dp(guesses, delta=delta, confidence=confidence),
        clopper_pearson(
            scores[coins],
            scores[~coins],
            delta=delta,
            confidence=confidence,
            generator=stream(seed, "audit-split"),
        ),
    ]


def audit(
    run: Run,
    releases: Sequence[Release],
    *,
    canaries: int = CANARIES,
    confidence: float = CONFIDENCE,
    runs: int = RUNS,
) -> dict[str, Any]:
    """Audit one run with its ledger, and return the content of audit.json.

    Args:
        run, releases: the run and its ledger.
        canaries: largest number of canaries of one experiment. A quarter of the clients
            stay ordinary.
        confidence: confidence of each bound by itself. The headline is fixed
            beforehand: f-DP by ranks, or many runs if the threshold reads raw norms.
        runs: runs in each world for the many-run audit.

    Raises:
        BenchError: a private run has no releases, or the ledger is of another mechanism
            than the code's.
    """
    started = time.monotonic()
    versions = versions_of("torch", "numpy", "scipy", "numba")
    nothing: dict[str, Any] = {
        "epsilon": None,
        "method": None,
        "status": "nothing to audit",
        "versions": versions,
    }
    if not run.private:
        return nothing | {"reason": "no release claims privacy"}
    if run.client_update.contributes_by_lot:
        reason = (
            "a lot makes one contribution, which bounds no record's: nothing is proven"
        )
        return nothing | {"reason": reason}
    try:
        for pair in {(event.mechanism, event.sampler["kind"]) for event in releases}:
            find(*pair)
    except BenchError as error:
        return nothing | {"reason": str(error)}
    lines = [(sum_, lines_of(sum_, releases)) for sum_ in run.private_sums]
    if not all(events for _, events in lines) or sum(
        len(events) for _, events in lines
    ) != len(releases):
        raise BenchError(
            "the ledger has releases of"
            f" {', '.join(sorted({event.name for event in releases}))}, but the"
            " current code has sums"
            f" {', '.join(sorted(sum_.name for sum_, _ in lines))}: train the run"
            " again"
        )
    served = [(sum_, events) for sum_, events in lines if sum_.within_task is None]
    updates = [
        (sum_, events)
        for sum_, events in lines
        if sum_.within_task is not None and sum_.unit == "client"
    ]
    examples = [
        event
        for sum_, events in lines
        if sum_.within_task is not None and sum_.unit == "record"
        for event in events
    ]
    # Of several mechanisms for one unit the worst is reported, so they share the error
    # probability.
    shares = collections.Counter(
        [sum_.unit for sum_, _ in served + updates] + ["record"] * bool(examples)
    )
    confidences = {unit: 1 - (1 - confidence) / share for unit, share in shares.items()}
    entries = [
        _audit_served(
            run,
            sum_,
            events,
            canaries=canaries,
            confidence=confidences[sum_.unit],
            runs=runs,
            observer=observer,
        )
        for sum_, events in served
        for observer in ("", *further_observers(events))
    ]
    by_client = functools.partial(_audit_by_client, run=run, canaries=canaries)
    entries += [
        by_client(
            one_run_of_updates,
            releases=events,
            family=family_of(events),
            seed=audit_seed(run, 2),
            delta=sum_.delta,
            confidence=confidences["client"],
        )
        for sum_, events in updates
    ]
    if examples:
        assert run.own_delta is not None
        family = own_family(examples, run.own_delta)
        entries.append(
            by_client(
                functools.partial(one_run_of_examples, groups=_groups_in(examples[0])),
                releases=examples,
                family=family,
                seed=audit_seed(run, 1),
                delta=run.own_delta,
                confidence=confidences["record"],
            )
        )
    entries = [
        entry
        | {
            "confidence": confidence,
            "chance": min(1.0, shares[entry["unit"]] * entry["chance"]),
        }
        for entry in entries
    ]
    if len({(entry["unit"], entry["observer"]) for entry in entries}) == 1:
        # A unit is in the releases of one mechanism or of the other. Refuting either
        # refutes the claim.
        entries.sort(key=_worst_first)
    if len(entries) > 2:
        # For each observer the worst entry: first that of the sums, then the others.
        worst = sorted(entries, key=_worst_first)
        entries = list(
            {
                (entry["unit"], entry["observer"]): entry for entry in reversed(worst)
            }.values()
        )
        entries.sort(key=lambda entry: entry["observer"] != releases[0].observer)
    report = entries[0] | {
        "seconds": round(time.monotonic() - started, 2),
        "versions": versions,
    }
    return report | ({"also": entries[1:]} if entries[1:] else {})


def _audit_by_client(
    run_once: Callable[..., CanaryExperiment],
    run: Run,
    releases: Sequence[Release],
    family: Family,
    *,
    seed: int,
    canaries: int,
    delta: float | None,
    confidence: float,
) -> dict[str, Any]:
    """Audit a private sum that each client takes by itself (`audit.own_sums`)."""
    assert delta is not None
    experiment = run_once(run, seed=seed, canaries=canaries)
    check_same_mechanism(
        [event for event in releases if event.round == 0], experiment.releases
    )
    bounds = bounds_of(
        experiment, family, delta=delta, confidence=confidence, seed=seed
    )
    return _entry(
        bounds,
        releases[0],
        family.epsilon(1.0, delta),
        delta=delta,
        confidence=confidence,
    ) | {
        "canaries": len(experiment.coins),
        "rounds": 1,
        "clients_audited": experiment.holders,
    }


def own_family(releases: Sequence[Release], delta: float) -> Family:
    """Return the family of few-shot clients' releases over their own examples.

    Like `family_of()`, for the worst of these releases.
    """
    worst = max(
        {(event.name, event.noise_multiplier): event for event in releases}.values(),
        key=lambda event: within_task.epsilon_of(
            event.sampler, event.noise_multiplier, delta
        ),
    )
    return Family(
        of(releases),
        within_task.one_client(worst.sampler, worst.noise_multiplier),
        worst.sampler,
    )


def _audit_served(
    run: Run,
    sum_: SumSpec,
    releases: Sequence[Release],
    *,
    canaries: int,
    confidence: float,
    runs: int,
    observer: str,
) -> dict[str, Any]:
    """Audit the server's private sum, or the sums of clients that hold records.

    `observer` replaces the sum's own observer; "" keeps it.
    """
    rule = sum_.private_rule
    delta = sum_.delta
    seed = audit_seed(run)
    assert delta is not None
    first = releases[0]
    rounds = rounds_of(releases)
    is_client_sum = sum_ in run.client_sums
    steps = int(first.sampler["rounds"]) // run.participation.rounds
    threshold = float(np.atleast_1d(first.threshold)[0])
    records = first.sampler.get("sizes") or int(first.sampler.get("records", 0))
    units = run.clients.count
    if is_client_sum:
        units = sum(records) if isinstance(records, list) else records * units
    # There should be ordinary clients or records beside the canaries.
    canaries_each = min(canaries, 3 * units // 4)
    dimension = None
    if sum_.private_noise.by_dimension:
        dimension = first.dimension
        canaries_each = min(canaries_each, dimension - ORDINARY)
    clients_added = further_observers(releases).get(observer, 0)
    groups = _groups_in(first)
    if groups > 1:  # a canary has one coordinate in each group
        canaries_each = min(canaries_each, max(_LEAST, canaries_each // groups))
    work = groups * canaries_each * len(rounds) * int(first.sampler["cohort"])
    repeats = (
        1
        if is_client_sum or of(releases).known
        else max(1, min(_MORE * canaries // canaries_each, _WORK // work, _REPEATS))
    )
    experiments = [
        one_run(
            run,
            sum_,
            seed=audit_seed(run, 0, index) if index else seed,
            canaries=canaries_each,
            dimension=dimension,
            groups=groups,
            rounds=len(rounds) // steps,
            threshold=threshold,
            records=records,
            steps=steps,
            added=clients_added,
            multipliers=[_charged(sum_, threshold, events) for events in rounds][
                ::steps
            ],
            progress=Progress(
                f"audit {run.folder}, {index + 1} of {repeats}",
                len(rounds) // steps,
                unit="rounds",
            ),
        )
        for index in range(repeats)
    ]
    experiment = dataclasses.replace(
        experiments[0],
        coins=np.concatenate([repeat.coins for repeat in experiments]),
        scores=np.concatenate([repeat.scores for repeat in experiments]),
        ideal=lambda generator: np.concatenate(
            [repeat.ideal(generator) for repeat in experiments if repeat.ideal]
        ),
    )
    check_same_mechanism(releases, experiment.releases)
    if observer:
        releases = [seen_by(event, clients_added, observer) for event in releases]
        experiment = dataclasses.replace(experiment, releases=releases)
    family = family_of(releases)
    bounds = bounds_of(
        experiment, family, delta=delta, confidence=confidence, seed=seed
    )
    # A value from another run does not leak from round to round.
    if not rule.private and not isinstance(rule, MedianOfRun):
        leak = leak_of(
            run,
            rule,
            records=records,
            first=threshold,
            delta=delta,
            confidence=confidence,
            runs=runs,
        )
        bounds = [leak, *bounds] if not math.isnan(leak.epsilon) else [*bounds, leak]
    proven = family.epsilon(1.0, delta) if rule.private else math.inf
    return _entry(bounds, releases[0], proven, delta=delta, confidence=confidence) | {
        "canaries": len(experiment.coins),
        "rounds": len(rounds),
        "clients_audited": experiment.holders if is_client_sum else None,
    }


def _groups_in(line: Release) -> int:
    """Return the number of coordinate groups by which a release was clipped."""
    return 1 if line.groups is None else len(line.groups["thresholds"])


def _charged(sum_: SumSpec, threshold: float, events: Sequence[Release]) -> float:
    """Return the noise multiplier z that a round was charged for.

    It is that of the sum, or of both releases if the sum pays for the rule.
    """
    extra = extra_of(sum_, threshold)
    within = extra is not None and extra.within
    return (
        joint_multiplier([event.noise_multiplier for event in events])
        if within
        else events[0].noise_multiplier
    )


def _entry(
    bounds: Sequence[Bound],
    first: Release,
    proven: float,
    *,
    delta: float,
    confidence: float,
) -> dict[str, Any]:
    """Return the entry of one mechanism in audit.json.

    `proven` becomes infinite if a release has no event. `chance` is the probability
    that correct code shows as much, for one mechanism. For the worst of several it is
    at most their number times as large.
    """
    headline = bounds[0]
    proven = math.inf if first.data_dependent_threshold else proven
    chance = headline.numbers.get("chance_of_as_much", 1 - confidence)
    return {
        "epsilon": headline.epsilon,
        "epsilon_ideal": None if math.isnan(headline.ideal) else headline.ideal,
        "another_mechanism": _is_another(headline),
        "method": headline.name,
        "assumes": headline.assumes,
        "reason": headline.reason,
        "confidence": confidence,
        "delta": delta,
        "unit": first.unit,
        "adjacency": first.adjacency,
        "observer": first.observer,
        "knows": _knows(first),
        "chance": chance,
        "status": _status(headline, proven, chance),
        "epsilon_proven": proven,
        "bounds": [_plain(bound) for bound in bounds],
    }


def _is_another(headline: Bound) -> bool:
    """Return whether the mechanism that ran is not the one in the ledger.

    This is so if correct code would hardly ever show as little, or have such scores.
    There are two tests, and each has half of the error probability.
    """
    return min(headline.chances.values(), default=1.0) < _ANOTHER / 2


def _worst_first(entry: dict[str, Any]) -> tuple[bool, float]:
    """Return the sort key of the audits of a unit.

    Other mechanisms than the ledger's come first; then the order is by bound.
    """
    return not entry["another_mechanism"], -entry["epsilon"]


def _knows(first: Release) -> str:
    known = (
        "the releases, thresholds, noise multipliers and the canaries' directions, not"
        " the noise seed"
    )
    if of([first]).known:
        return f"{known}; who is in which block"
    return f"{known}, nor who takes entry when"


def _status(headline: Bound, proven: float, chance: float) -> str:
    if headline.epsilon > proven:
        if chance > _CHANCE:
            return (
                f"above what is proven ({proven:.4g}): a leak or chance; {100 * chance:.2g}"
                " % of audits of right code say so"
            )
        return (
            f"ABOVE what is proven ({proven:.4g}): the mechanism leaks more than its account"
            " says"
        )
    if _is_another(headline):
        return (
            "ANOTHER MECHANISM ran than the ledger's, of which the best attacker shows"
            f" {headline.ideal:.4g}: this bound does not see how much it leaks; right"
            " code is said to be so in one audit of ten thousand"
        )
    return (
        f"not above what is proven ({proven:.4g}); a lower bound against one adversary, not"
        " a proof of privacy"
    )


def _plain(bound: Bound) -> dict[str, Any]:
    values = {
        "found" if name == "numbers" else name: value
        for name, value in dataclasses.asdict(bound).items()
    }
    return values | {
        name: None if math.isnan(values[name]) else values[name]
        for name in ("epsilon", "ideal")
    }


def audit_run(run_dir: Path | str, out_path: Path | str) -> None:
    """Audit a finished run's mechanism and write its audit.json.

    Raises:
        BenchError: the ledger is missing, damaged, or of another mechanism than the
            configuration's or the code's.
    """
    run_dir = Path(run_dir)
    run = read_run_file(run_dir / "config.yaml")
    write_json(out_path, audit(run, ledger_of(run, run_dir)))
