"""Audits beside the accounts of rows: an ε is marked where its audit exceeds it
(`dpfedbench.audit.findings`).
"""

import pandas as pd

from dpfedbench.audit.findings import mark
from dpfedbench.results.formats import with_epsilon_texts
from dpfedbench.results.summary import each_row


def mark_rows(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the rows with both ε marked where their audit exceeds them.

    Args:
        rows: as `summary.summarize` returns them.
        count: audits shown in the same place.
    """
    epsilons = {"claimed": "epsilon_claimed", "proven": "epsilon_proven_high"}
    for name, epsilon in epsilons.items():
        marks = [
            mark(
                getattr(row, epsilon),
                getattr(row, f"{name}_status"),
                bound=row.epsilon_audited,
                chance=row.audit_chance,
                proven_at_audit=row.epsilon_proven_at_audit,
                count=count,
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
