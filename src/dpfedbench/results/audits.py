"""Audits beside accounts: an ε is marked where the lower bound of an audit exceeds it.

A bound errs by chance. With correct code one audit in twenty exceeds the proven ε,
mostly by little; `audit_chance` is the probability of an excess as large. Of n audits
that are shown in one place, the probability that any has such an excess is at most n
times that. Where this is below `LEVEL`, the account is refuted.
"""

import math

import pandas as pd

from dpfedbench.results.formats import with_epsilon_texts
from dpfedbench.results.summary import each_row

LEVEL = 0.01
"""The probability that a page of correct code has any account called refuted."""

_FEWEST = 10
"""Fewer audits count as so many: then an excess must be as rare as one in a thousand to
refute (`audit.report`).
"""


def mark_rows(rows: pd.DataFrame, count: int | None = None) -> pd.DataFrame:
    """Return the rows with both ε marked where their audit exceeds them.

    Args:
        rows: as `summary.summarize` returns them.
        count: audits shown in the same place; None: those of the rows.
    """
    if count is None and len(rows):
        count = count_audits(rows)
    epsilons = {"claimed": "epsilon_claimed", "proven": "epsilon_proven_high"}
    for name, epsilon in epsilons.items():
        marks = [
            mark(
                getattr(row, epsilon),
                getattr(row, f"{name}_status"),
                bound=row.epsilon_audited,
                chance=row.audit_chance,
                proven_at_audit=row.epsilon_proven_at_audit,
                count=count or 0,
            )
            for row in each_row(rows)
        ]
        marked = pd.DataFrame(marks, columns=[f"{name}_status", f"{name}_excess"])
        rows = rows.assign(**marked.set_index(rows.index))
    return with_epsilon_texts(rows)


def count_audits(rows: pd.DataFrame) -> int:
    """Return how many audits the rows show: cells may share one."""
    audited = rows[rows["epsilon_audited"].notna()]
    return len(audited.drop_duplicates(["audited_run", "unit", "observer"]))


def mark(
    epsilon: float,
    status: str,
    *,
    bound: float,
    chance: float,
    proven_at_audit: float,
    count: int,
) -> tuple[str, str]:
    """Return the status of an ε, and what its audit says against it or "".

    An ε that claims nothing keeps its status.

    Args:
        epsilon: high end, claimed or proven; NaN: none.
        status: before the audit.
        bound: the audited lower bound; NaN: no audit.
        chance: probability of such a bound with correct code.
        proven_at_audit: the proven ε at the δ of the audit.
        count: audits shown in the same place.
    """
    is_claim = status not in ("void", "none", "") and not math.isnan(epsilon)
    if not is_claim or not bound > min(epsilon, proven_at_audit):
        return status, ""
    excess = f"audited above what is proven, as {100 * chance:.2g} % of audits of right code are"
    is_refuted = chance * max(count, _FEWEST) <= LEVEL
    return ("refuted" if is_refuted else status), excess


def with_excess(status: str, excess: str) -> str:
    """Return a status together with what an audit says against it."""
    return f"{status}, {excess}" if excess else status
