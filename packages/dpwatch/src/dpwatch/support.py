"""Which sampler, noise and adjacency has an account: in dpsum and in dp_accounting.

The rows of dpsum and dpwatch come from the registry of accountants. Those of
dp_accounting come from its accountants' own `supports`. `docs/support.md` has both
tables.

    python -m dpwatch.support
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import dpwatch.accountants  # noqa: F401  # registers the accountants of dpwatch
from dpsum.accounting import analyses
from dpsum.accounting.accountant import Accountant

EXACT = "exact"
BOTH = "both ends"
HIGH = "high end"
NONE = "none"


class OwnSupport(NamedTuple):
    """One pair of dpsum's registry: what its account has under each adjacency."""

    sampler: str
    noise: str
    zero_out: str
    replace_one: str
    secret: str


def own_support() -> list[OwnSupport]:
    """Return dpsum's and dpwatch's support, one row a pair of the registry."""
    rows = []
    for noise, sampler in analyses.pairs():
        accountant = analyses.find(noise, sampler)
        rows.append(
            OwnSupport(
                sampler=sampler,
                noise=noise,
                zero_out=_under_own_adjacency(accountant, "zero-out"),
                replace_one=_under_replace_one(accountant),
                secret="no" if accountant.known else "yes",
            )
        )
    return rows


def _overrides(accountant: Accountant, method: str) -> bool:
    return getattr(type(accountant), method) is not getattr(Accountant, method)


def _under_own_adjacency(accountant: Accountant, adjacency: str) -> str:
    """Return the ends under the adjacency that an accountant is written for.

    An accountant that overrides `bracket` has two ends; the others are one Gaussian.
    """
    if accountant.adjacency != adjacency:
        return NONE
    if _overrides(accountant, "bracket"):
        return BOTH
    return EXACT


def _under_replace_one(accountant: Accountant) -> str:
    """Return the ends under replace-one adjacency; see `Profiles._replace_one`."""
    if accountant.adjacency == "replace-one":
        return _under_own_adjacency(accountant, "replace-one")
    if _overrides(accountant, "replaced"):
        return BOTH
    if not _overrides(accountant, "bracket"):
        return EXACT
    return HIGH


def dp_accounting_support() -> list[tuple[str, str, str]]:
    """Return the samplers and noises that the installed dp_accounting is asked for, with
    the adjacencies under which its PLDAccountant and its RdpAccountant take each.

    Raises:
        ImportError: dp_accounting is not installed.
    """
    import dp_accounting
    from dp_accounting import dp_event as events

    from dpwatch.adapters.dp_event import ADJACENCIES

    gaussian = events.GaussianDpEvent(1.0)
    samplers = {
        "everyone, or known blocks; Gaussian": gaussian,
        "Poisson, Gaussian": events.PoissonSampledDpEvent(0.1, gaussian),
        "fixed size without replacement, Gaussian": (
            events.SampledWithoutReplacementDpEvent(100, 10, gaussian)
        ),
        "fixed size with replacement, Gaussian": (
            events.SampledWithReplacementDpEvent(100, 10, gaussian)
        ),
        "truncated Poisson, Gaussian": (
            events.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0)
        ),
        "tree aggregation, one epoch, Gaussian": (
            events.SingleEpochTreeAggregationDpEvent(1.0, 10)
        ),
        "mixture of Gaussians": events.MixtureOfGaussiansDpEvent(
            1.0, [0, 1], [0.9, 0.1]
        ),
        "everyone, Laplace": events.LaplaceDpEvent(1.0),
    }
    accountants = (dp_accounting.pld.PLDAccountant, dp_accounting.rdp.RdpAccountant)
    rows = []
    for sampler, event in samplers.items():
        pld, rdp = (
            ", ".join(
                adjacency
                for relation, adjacency in ADJACENCIES.items()
                if accountant(neighboring_relation=relation).supports(event)
            )
            for accountant in accountants
        )
        rows.append((sampler, pld or NONE, rdp or NONE))
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def dpsum_table() -> str:
    """Return the table of `own_support`; samplers with equal entries share a row."""
    samplers: dict[tuple[str, ...], list[str]] = {}
    for row in own_support():
        samplers.setdefault(row[1:], []).append(row.sampler)
    return _table(
        ["samplers", "noise", "zero-out", "replace-one", "cohorts must stay secret"],
        [(", ".join(names), *entries) for entries, names in samplers.items()],
    )


def dp_accounting_table() -> str:
    """Return the table of `dp_accounting_support`.

    Raises:
        ImportError: dp_accounting is not installed.
    """
    return _table(
        ["sampler and noise", "PLDAccountant", "RdpAccountant"],
        dp_accounting_support(),
    )


if __name__ == "__main__":
    print(dpsum_table())
    print(dp_accounting_table())
