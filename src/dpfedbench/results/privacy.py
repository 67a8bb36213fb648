"""The table of privacy: for each private configuration several ε.

They are the ε that the paper prints, the one that its accounting gives for this run,
the proven one, and an audited lower bound. `docs/privacy.md` explains each;
`privacy_figure` draws them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import finished_ledger
from dpfedbench.results.audits import mark_rows
from dpfedbench.results.configurations import APPEARANCE, read_configurations
from dpfedbench.results.formats import Listing
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import each_row
from dpfedbench.results.table_columns import csv_columns, listing_of
from dpsum.ledger import check_same_mechanism

TITLE = "Three ε: claimed, proven, audited"
PRINTED_ITEM = "epsilon"
"""The item of config/published.csv under which a paper's printed ε stand; x is the
noise multiplier.
"""


_OTHER_MECHANISM = "of another mechanism than the ledger's"


def read(
    cells: Iterable[Mapping[str, Any]], results: str | Path, published: str | Path
) -> pd.DataFrame:
    """Return one row for each private configuration and each unit that it protects.

    Args:
        cells: of tables and figures, as `items.Item.cells`.
        results: the results folder.
        published: the file of published numbers.

    Returns:
        As `explain`.

    Raises:
        BenchError: a file of a run is missing or damaged, or the mechanism of its
            ledger is not the one audited.
    """
    private = [cell for cell in cells if cell["private"]]
    return explain(read_configurations(private, results), results, published)


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
    rows = mark_rows(rows[rows["unit"] != ""].reset_index(drop=True))
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
    rows["audit"] = [_audit(row) for row in each_row(rows)]
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
    return pd.DataFrame(cells.to_list(), index=cells.index, columns=APPEARANCE)


def _audit(row: Any) -> str:
    confidence = f"{100 * row.audit_confidence:g} % confidence"
    return ", ".join(filter(None, [row.audit_method, confidence, row.audit_note]))


def _check_audit(row: Any, runs: Path) -> None:
    """Check that the audit of a row is there and of the row's mechanism."""
    path = runs / (row.audited_run or row.runs[0]) / "audit.json"
    if math.isnan(row.epsilon_audited):
        if not path.exists():
            raise BenchError(f"{path} is missing: run the workflow again to make it")
        raise BenchError(
            f"the audit of {runs / row.folder} was made for other releases: delete its"
            " audit.json and run the workflow again"
        )
    if row.audited_run != row.runs[0]:
        ledgers = (
            finished_ledger(runs / run)[0] for run in (row.runs[0], row.audited_run)
        )
        check_same_mechanism(
            *ledgers,
            whose=f"the audited {row.audited_run}",
            mend=f"delete {runs / row.runs[0]} and run again",
        )


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
    return float(fits["value"].iloc[0]) if len(fits) else math.nan


def _reason(row: Any) -> str:
    reasons = {
        "claimed": [row.claimed_explanation],
        "proven": [row.proven_explanation],
        "image level": [row.image_level_explanation],
        "audit": [row.audit_reason],
    }
    if row.audited_run != row.runs[0]:
        audited = Path(row.audited_run).parent
        reasons["audit"].append(f"made for {audited}, whose mechanism is the same")
    texts = {name: ", ".join(filter(None, parts)) for name, parts in reasons.items()}
    return "; ".join(f"{name}: {text}" for name, text in texts.items() if text)


def tidy(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the table for programs; its CSV has no empty cell: "none" stands where
    there is nothing.
    """
    table = csv_columns(rows, "privacy")
    return table.assign(
        epsilon_printed=table["epsilon_printed"].astype(object).fillna("not printed")
    )


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
    return listing_of(rows, "privacy", title=TITLE, notes=NOTES)


def rows_of_figure(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that the figure draws: of each table those of its first task,
    each repair directly after what it repairs.

    A table's further tasks have the same mechanisms and show the same. Of a paper whose
    tables show nothing private, the rows of its figures are drawn.
    """
    cells = appearances(rows)
    alone = rows[~rows["paper"].isin(rows.loc[cells.index, "paper"])]
    cells = pd.concat([cells, alone[["paper"]]]).fillna("").sort_index()
    cells = cells.join(rows[["dataset", "task", "unit"]]).rename_axis("row")
    of_item = cells.groupby(["paper", "item"])[["dataset", "task"]]
    is_first = (cells[["dataset", "task"]] == of_item.transform("first")).all(axis=1)
    cells = cells[is_first].reset_index()
    # A repair belongs to the series that it repairs.
    family = cells["repairs"].mask(cells["repairs"] == "", cells["series"])
    keys = [cells["paper"], cells["item"], family, cells["unit"]]
    cells["place"] = cells.groupby(keys)["row"].transform("min")
    cells.loc[cells["item"] == "", "place"] = cells["row"]
    places = cells.groupby("row").agg(panel=("paper", "first"), place=("place", "min"))
    drawn = rows.join(places, how="inner")
    return drawn.sort_values(["place", "repaired"], kind="stable", ignore_index=True)


def drawn_numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the figure."""
    drawn = rows_of_figure(rows)
    return csv_columns(drawn.assign(number=drawn.index + 1), "privacy figure")
