"""The table of privacy: for each private configuration several ε.

They are the ε that the paper prints, the one that its accounting gives for this run,
the proven one, and an audited lower bound. `docs/privacy.md` explains each;
`privacy_figure` draws them.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfedbench.audit.findings import check_shared_audit
from dpfedbench.errors import BenchError
from dpfedbench.results.audits import count_audits, mark_rows
from dpfedbench.results.configurations import APPEARANCE
from dpfedbench.results.formats import Listing
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import each_row
from dpfedbench.results.table_columns import listing_of

TITLE = "Three ε: claimed, proven, audited"
PRINTED_ITEM = "epsilon"
"""The item of config/published.csv under which a paper's printed ε stand; x is the
noise multiplier.
"""


_OTHER_MECHANISM = "of another mechanism than the ledger's"


def explain(
    rows: pd.DataFrame, results: str | Path, published: str | Path
) -> pd.DataFrame:
    """Return the private ones of some rows, with what each of their ε rests on.

    Args:
        rows: as `configurations.read_configurations`.
        results: the results folder.
        published: the file of published numbers.

    Returns:
        The columns of `rows`, with the table cells alone in `shown_in` (paper, item,
        series, repairs), and further `repaired` (whether it repairs a claim that
        has no proof), `printed` (the paper's ε or NaN), `audit` (how the bound was
        found) and `reason` (what each number rests on).

    Raises:
        BenchError: an audit is missing, or is of another mechanism.
    """
    if not len(rows):
        return rows
    rows = rows[rows["unit"] != ""].reset_index(drop=True)
    rows = mark_rows(rows, count_audits(rows))
    rows["shown_in"] = [
        tuple(cell for cell in cells if cell[2] == "table")
        for cells in rows["shown_in"]
    ]
    repairs = appearances(rows)["repairs"]
    rows["repaired"] = rows.index.isin(repairs.index[repairs != ""])
    multipliers = rows["accounted_multiplier"].fillna(math.inf)
    rows["accounted_multiplier"] = multipliers.replace(0, math.inf)
    printed = {
        paper: read_published(published, paper, PRINTED_ITEM)
        for paper in rows["paper"].unique()
    }
    for row in each_row(rows):
        _check_audit(row, Path(results, "runs"))
    rows["printed"] = [_printed(row, printed[row.paper]) for row in each_row(rows)]
    is_another = rows["audit_saw_another_mechanism"].astype(bool)
    rows["audit_note"] = np.where(is_another, _OTHER_MECHANISM, "")
    confidences = (100 * rows["audit_confidence"]).map("{:g} % confidence".format)
    rows["audit"] = rows["audit_method"] + ", " + confidences
    rows["audit"] += np.where(is_another, f", {_OTHER_MECHANISM}", "")
    rows["reason"] = [_reason(row) for row in each_row(rows)]
    rows["role"] = np.where(rows["repaired"], "repaired", "published")
    rows["folders"] = "results/runs/" + rows["folder"]
    rows["data"] = rows["dataset"] + " " + rows["task"]
    rows["name"] = rows["method"] + ", " + rows["variant"]
    rows["name"] += np.where(rows["repaired"], " (repaired)", "")
    return rows


def appearances(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the table cells that show rows: a line for each, with the row's index."""
    cells = rows["shown_in"].explode().dropna()
    return pd.DataFrame(
        cells.to_list(),
        index=cells.index,
        columns=APPEARANCE,
    )


def _check_audit(row: Any, runs: Path) -> None:
    """Check that the audit of a row is there and of the row's mechanism."""
    path = runs / (row.audited_run or row.runs[0]) / "audit.json"
    if math.isnan(row.epsilon_audited):
        raise BenchError(
            f"{path} is missing or was made for other releases: delete it and run the"
            " workflow again"
        )
    if row.audited_run != row.runs[0]:
        check_shared_audit(runs, row.runs[0], row.audited_run)


def _printed(row: Any, printed: pd.DataFrame) -> float:
    """Return the paper's ε at the row's noise multiplier, or NaN.

    A number without a multiplier is for all of them. Where a method protects two units,
    the printed number's variant names the one it is for.
    """
    if row.repaired:
        return math.nan
    fits = printed[
        (printed["method"] == row.method)
        & printed["variant"].isin(["", row.unit])
        & (printed["x"].isna() | (printed["x"] == row.configured_multiplier))
    ]
    return float(fits["value"].head(1).max())


def _reason(row: Any) -> str:
    audit = [row.audit_reason]
    if row.audited_run != row.runs[0]:
        audited = Path(row.audited_run).parent
        audit.append(f"made for {audited}, whose mechanism is the same")
    reasons = {
        "claimed": row.claimed_explanation,
        "proven": row.proven_explanation,
        "image level": row.image_level_explanation,
        "audit": ", ".join(filter(None, audit)),
    }
    return "; ".join(f"{name}: {text}" for name, text in reasons.items() if text)


NOTES = (
    (
        "Printed ε: the number in the paper, at the paper's scale. Claimed ε: the"
        " paper's accounting, applied to the run made here. Proven ε: what is proved"
        " for the sampler that ran and for the observer. Audited ε: a lower bound"
        " from canaries, with 95 % confidence; a low bound proves nothing. Ideal"
        " attacker: the bound that the best possible attacker reaches in half of all"
        " audits with as many canaries. docs/privacy.md explains each."
    ),
    (
        "Audited above what is proven: the lower bound exceeds the ε. With correct code"
        " this happens by chance in one audit of twenty, so expect it in a few of many"
        " rows; the row says how often correct code has such a bound. Refuted: of a"
        " hundred tables like this one, fewer than one would have such a row by chance."
    ),
    (
        "The CSV also has the observer, the adjacency, the image-level account and the"
        " intervals of accuracy. Its column `reason` says what each number rests on,"
        " and why an ε is infinite."
    ),
)


def listing(rows: pd.DataFrame) -> Listing:
    """Return the columns that fit a page of text, for readers."""
    return listing_of(
        rows,
        "privacy",
        title=TITLE,
        notes=NOTES,
    )


def rows_of_figure(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that the figure draws: those of tables, each mechanism once.

    A table's further tasks have the same mechanisms and show the same. Of a paper whose
    tables show nothing private, the rows of its figures are drawn.
    """
    in_table = rows["shown_in"].str.len() > 0
    is_drawn = in_table | ~rows["paper"].isin(rows.loc[in_table, "paper"])
    mechanism = ["paper", "method", "variant", "unit", "observer"]
    drawn = rows[is_drawn].drop_duplicates([*mechanism, "accounted_multiplier"])
    return drawn.reset_index(drop=True).assign(number=range(1, len(drawn) + 1))
