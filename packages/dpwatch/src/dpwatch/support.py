"""Which sampler, noise and adjacency has an account: in dpsum and in other libraries.

The rows of dpsum and dpwatch come from the registry of accountants. Those of
dp_accounting come from its accountants' own `supports`. Those of Opacus and jax_privacy
are `OTHERS`, written by hand for the versions that it names.

    python -m dpwatch.support > packages/dpwatch/docs/support.md
"""

from __future__ import annotations

import importlib.metadata
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


class LibrarySupport(NamedTuple):
    """One sampler and noise of another library."""

    library: str
    sampler: str
    accountant: str
    adjacency: str
    ends: str


OTHERS = (
    LibrarySupport(
        "Opacus 1.6.0",
        "Poisson, Gaussian noise",
        "RDPAccountant",
        "add-or-remove",
        "high end (Rényi)",
    ),
    LibrarySupport(
        "Opacus 1.6.0",
        "Poisson, Gaussian noise",
        "PRVAccountant",
        "add-or-remove",
        "estimate with a stated error; it returns the high end",
    ),
    LibrarySupport(
        "Opacus 1.6.0",
        "Poisson, Gaussian noise",
        "GaussianAccountant",
        "add-or-remove",
        "none: a limit (CLT), no bound",
    ),
    LibrarySupport(
        "Opacus 1.6.0",
        "shuffled batches (poisson_sampling=False)",
        "the same three",
        "add-or-remove",
        "none: the account stays that of Poisson samples",
    ),
    LibrarySupport(
        "jax_privacy 2.0.0",
        "CyclicPoissonSampling, cycle 1",
        "DpsgdTrainingAccountant (RDP or PLD)",
        "add-or-remove, zero-out",
        "high end",
    ),
    LibrarySupport(
        "jax_privacy 2.0.0",
        "CyclicPoissonSampling, truncated",
        "truncated_dpsgd_event, by PLDAccountant",
        "zero-out",
        "high end",
    ),
    LibrarySupport(
        "jax_privacy 2.0.0",
        "CyclicPoissonSampling, longer cycles, banded noise",
        "amplified_bandmf_event",
        "zero-out; add-or-remove for an independent partition",
        "high end",
    ),
    LibrarySupport(
        "jax_privacy 2.0.0",
        "FixedBatchSampling, without replacement",
        "fixed_dpsgd_event, by RdpAccountant",
        "replace-one",
        "high end",
    ),
    LibrarySupport(
        "jax_privacy 2.0.0",
        "FixedBatchSampling, without replacement",
        "DpsgdTrainingAccountant (RDP or PLD)",
        "replace-one",
        "high end, as Poisson samples at half of the noise multiplier",
    ),
    LibrarySupport(
        "jax_privacy 2.0.0",
        "FixedBatchSampling, with replacement",
        "fixed_dpsgd_event(replace=True)",
        "none",
        "none: no accountant of dp_accounting takes the event",
    ),
    LibrarySupport(
        "jax_privacy 2.0.0",
        "BallsInBinsSampling, BMinSepSampling",
        "experimental.monte_carlo",
        "zero-out",
        "high end by draws, with a failure probability",
    ),
)
"""Support of libraries whose accountants cannot be asked."""


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
    relation = dp_accounting.NeighboringRelation
    relations = {
        "add-or-remove": relation.ADD_OR_REMOVE_ONE,
        "replace-one": relation.REPLACE_ONE,
        "zero-out": relation.REPLACE_SPECIAL,
    }
    accountants = (dp_accounting.pld.PLDAccountant, dp_accounting.rdp.RdpAccountant)
    rows = []
    for sampler, event in samplers.items():
        pld, rdp = (
            ", ".join(
                adjacency
                for adjacency, neighbours in relations.items()
                if accountant(neighboring_relation=neighbours).supports(event)
            )
            for accountant in accountants
        )
        rows.append((sampler, pld or NONE, rdp or NONE))
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def support_page() -> str:
    """Return the page `docs/support.md`.

    Raises:
        ImportError: dp_accounting is not installed.
    """
    samplers: dict[tuple[str, ...], list[str]] = {}
    for row in own_support():
        samplers.setdefault(row[1:], []).append(row.sampler)
    dpsum_table = _table(
        ["samplers", "noise", "zero-out", "replace-one", "cohorts must stay secret"],
        [(", ".join(names), *entries) for entries, names in samplers.items()],
    )
    dp_accounting = _table(
        ["sampler and noise", "PLDAccountant", "RdpAccountant"],
        dp_accounting_support(),
    )
    version = importlib.metadata.version("dp-accounting")
    others = _table(
        ["library", "sampler and noise", "accountant", "adjacency", "ends"], OTHERS
    )
    return f"""# Which training has an account

Find your sampler, noise and adjacency. A pair that is not here has no account in dpsum: it is refused, and no ε is printed.

## dpsum and dpwatch

{dpsum_table}

- *{EXACT}*: all releases are one Gaussian for a unit. *{BOTH}*: a proven low and high end. *{HIGH}*: a replacement counts as two
  changes, or the end is exact where this run's releases are one Gaussian; the low end is that of zero-out.
- Ends of correlated noise with balls-and-bins may be by draws, with a failure probability that is part of δ and that the account names.
- Add-or-remove has the numbers of zero-out for Poisson samples and for everyone, where the sum is divided by a public number.
- *fixed-draws* and the low end of *shuffled-epochs* with secret batches are dpwatch's.

## Other libraries

None has a low end. The accountants of dp_accounting {version} were asked by `supports` for one Gaussian or Laplace release with each
sampler: they have a {HIGH} under these adjacencies. RdpAccountant takes multipliers under replace-one as noise over 2 C.

{dp_accounting}

jax_privacy was read in its source, and of Opacus its version and the names of its accountants.

{others}

Made by `python -m dpwatch.support`.
"""


if __name__ == "__main__":
    print(support_page(), end="")
