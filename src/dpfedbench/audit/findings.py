"""Audits beside accounts: an ε is marked where the lower bound of an audit exceeds it.

A bound errs by chance. With correct code one audit in twenty exceeds the proven ε,
mostly by little; `audit_chance` is the probability of an excess as large. Of n audits
that are shown in one place, the probability that any has such an excess is at most n
times that. Where this is below `LEVEL`, the account is refuted.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.files import read_group
from dpfedbench.training.accounts import finished_ledger
from dpsum.ledger import check_same_mechanism

LEVEL = 0.01
"""The probability that a page of correct code has any account called refuted."""

_FEWEST = 10
"""Fewer audits count as so many: then an excess must be as rare as one in a thousand to
refute (`audit.report`).
"""


def read_audits(path: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the audits of a run by unit and observer.

    Raises:
        BenchError: the file is missing or damaged.
    """
    audit = read_group(path)
    try:
        if audit["epsilon"] is None:
            return {}
        entries = (*audit.get("also", ()), audit)
        return {(entry["unit"], entry["observer"]): entry for entry in entries}
    except (KeyError, TypeError, AttributeError) as error:
        raise BenchError(
            f"{path} is not an audit ({error}): delete it and run the workflow again"
        ) from error


def check_shared_audit(runs: Path, run: str, audited_run: str) -> None:
    """Check that a run has the mechanism of the run whose audit stands for it.

    Args:
        runs: the folder of all runs.
        run: the run, below that folder.
        audited_run: the audited run, below that folder.

    Raises:
        BenchError: a ledger is damaged, or the mechanisms differ.
    """
    ledgers = (finished_ledger(runs / name)[0] for name in (run, audited_run))
    check_same_mechanism(
        *ledgers,
        whose=f"the audited {audited_run}",
        mend=f"delete {runs / run} and run again",
    )


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
    excess = (
        f"audited above what is proven, as in {100 * chance:.2g} % of audits of correct"
        " code"
    )
    is_refuted = chance * max(count, _FEWEST) <= LEVEL
    return ("refuted" if is_refuted else status), excess


def with_excess(status: str, excess: str) -> str:
    """Return a status together with what an audit says against it."""
    return f"{status}, {excess}" if excess else status
