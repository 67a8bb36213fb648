"""Check that all runs of a private search have one account.

The account of a search composes K runs (`dpsum.accounting.tuning`). It reads the ledger
of one run and counts it K times, so that every run has to be exactly as private as this
one. The search is refused where the settings of its runs do not show that.

Proof that the account of a run does not depend on the omitted settings (`_omitted`). An
account follows from the ledger alone. With independent Gaussian noise of multiplier z,
each release moves by at most z^-1 deviations of its noise, whatever the threshold, the
dimension and the contributions are, and whatever the server does with the release. So
the network, the server's step, the transform before clipping and what a client computes
matter only where they give a release of their own, or determine how many releases read
a record. One clipping rule differs from another in its further releases alone. In
disjoint known blocks, and in sums that a client takes over its own records once, a unit
is in the same number of releases whatever the number of rounds is. Settings of tests
are post-processing. All other settings are compared, those of plugins too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpfedbench.breaches import unaccounted_releases, unaccounted_units
from dpfedbench.config.merge import leaves
from dpfedbench.errors import BenchError
from dpfedbench.run import Run
from dpsum.clipping import ClippingRule

_NO_RELEASE = ("seed", "evaluation.", "task.text.refine_batch")
_OF_GAUSSIAN_NOISE = (
    "server.",
    "transform.",
    "client_update.inner_rate",
    "client_update.optimizer.",
    "client_update.schedule.",
)
_OF_VALIDATION = ("validation.every", "validation.tasks", "validation.ensemble")


def check_search(runs: Sequence[Run], where: str) -> None:
    """Refuse a search on private data whose runs may have different accounts.

    Args:
        runs: one run of each setting that the search compares, and of the search that
            it follows.
        where: dotted key of the search.

    Raises:
        BenchError: names the settings that differ.
    """
    if not any(run.private for run in runs):
        return
    first, *further_settings = [privacy_settings(run) for run in runs]
    differing: dict[str, None] = {}
    for settings in further_settings:
        for key in [*first, *settings]:
            if first.get(key) != settings.get(key):
                differing[key] = None
    if differing:
        keys = ", ".join(differing)
        raise BenchError(
            f"{where} compares runs that differ in {keys}, which changes what a run"
            " reveals of private data, but the account of a search takes all its runs"
            " to be equally private: give all of them the same value"
        )


def privacy_settings(run: Run) -> dict[str, Any]:
    """Return the settings on which a run's account may depend, by dotted key.

    Runs whose settings are equal here have equal accounts (see the module's proof).
    """
    omitted = tuple(_omitted(run))
    settings = {
        key: value
        for key, value in leaves(run.plain()).items()
        if not key.startswith(omitted)
    }
    settings["releases without an account"] = (
        *unaccounted_releases(run),
        *sorted(unaccounted_units(run)),
    )
    return settings


def _omitted(run: Run) -> list[str]:
    """Return the beginnings of keys that do not change the account of a run."""
    omitted = list(_NO_RELEASE)
    sums = run.private_sums
    if not any(sum_.private_noise.follows_loss for sum_ in sums):
        omitted += _OF_VALIDATION
    is_gaussian = all(
        sum_.private_noise.mechanism == "gaussian"
        and not sum_.private_noise.by_dimension
        for sum_ in sums
    )
    if not is_gaussian:
        return omitted
    omitted += _OF_GAUSSIAN_NOISE
    if all(sum_.unit == "client" for sum_ in sums):
        omitted.append("client_update.")
    if all(sum_.private_rule.groups == "all" for sum_ in sums):
        omitted.append("model.")
        omitted += _thresholds(run)
    if _counts_no_rounds(run):
        omitted += ("participation.cohort", "participation.rounds")
    return omitted


def _thresholds(run: Run) -> list[str]:
    """Return the keys of clipping rules that only change thresholds."""
    rules = [type(sum_.private_rule) for sum_ in run.private_sums]
    if any(rule.claimed_ratio is not ClippingRule.claimed_ratio for rule in rules):
        return []
    keys = ["clipping.threshold", "within_task.threshold", "own_update.threshold"]
    if all(rule.extra is ClippingRule.extra for rule in rules):
        keys += ("clipping.percentile", "clipping.window", "clipping.never_rising")
    return keys


def _counts_no_rounds(run: Run) -> bool:
    """Return whether a unit is in as many releases, whatever the number of rounds is.

    Noise that a budget calibrates under a paper's claim depends on that number.
    """
    served = [sum_ for sum_ in run.private_sums if sum_.within_task is None]
    if not served:
        return True
    if run.participation.kind != "one-pass":
        return False
    return all(
        sum_.private_noise.multiplier is not None
        and sum_.taken_by == "server"
        and (sum_.budget is None or sum_.budget.epsilon is None)
        for sum_ in served
    )
