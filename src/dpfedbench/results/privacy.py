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

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import finished_ledger
from dpfedbench.results.audits import mark_rows
from dpfedbench.results.configurations import read_configurations
from dpfedbench.results.formats import (
    Formatted,
    Listing,
    format_number,
    format_range,
    format_text,
    status_of,
)
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import each_row
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
    rows = rows[rows["unit"] != ""].reset_index(drop=True)
    for row in each_row(rows):
        _check_audit(row, Path(results, "runs"))
    printed = {
        paper: read_published(published, paper, PRINTED_ITEM)
        for paper in rows["paper"].unique()
    }
    rows = mark_rows(rows)
    rows["accounted_multiplier"] = rows["accounted_multiplier"].replace(0, math.inf)
    rows["accounted_multiplier"] = rows["accounted_multiplier"].fillna(math.inf)
    rows["shown_in"] = rows["shown_in"].map(_table_cells)
    rows["repaired"] = [any(cell[3] for cell in cells) for cells in rows["shown_in"]]
    rows["printed"] = [_printed(row, printed[row.paper]) for row in each_row(rows)]
    rows["audit"] = [_audit(row) for row in each_row(rows)]
    rows["reason"] = [_reason(row) for row in each_row(rows)]
    return rows


def _table_cells(shown_in: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return (paper, item, series, repairs) of those cells that tables show."""
    return tuple(
        (paper, item, series, repairs)
        for paper, item, kind, series, repairs in shown_in
        if kind == "table"
    )


def _audit(row: Any) -> str:
    text = f"{row.audit_method}, {100 * row.audit_confidence:g} % confidence"
    if row.audit_saw_another_mechanism:
        text += f", {_OTHER_MECHANISM}"
    return text


def _check_audit(row: Any, runs: Path) -> None:
    """Check that the audit of a row is there and of the row's mechanism."""
    path = runs / row.audited_run / "audit.json"
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
    sentences = [
        f"claimed: {row.claimed_explanation}",
        f"proven: {row.proven_explanation}",
    ]
    if not math.isnan(row.epsilon_image_level):
        sentences.append(f"image level: {row.image_level_explanation}")
    of_audit = [row.audit_reason]
    if row.audited_run != row.runs[0]:
        audited = Path(row.audited_run).parent
        of_audit.append(f"made for {audited}, whose mechanism is the same")
    if any(of_audit):
        sentences.append(f"audit: {', '.join(filter(None, of_audit))}")
    return "; ".join(sentences)


_CSV_COLUMNS = {
    **{name: name for name in ("paper", "method", "variant", "role")},
    **{name: name for name in ("dataset", "task", "unit", "adjacency", "observer")},
    "delta": "delta",
    "accounted_multiplier": "noise_multiplier",
    "printed": "epsilon_printed",
    "epsilon_claimed": "epsilon_claimed",
    "claimed_status": "claimed_status",
    "epsilon_proven_low": "epsilon_proven_low",
    "epsilon_proven_high": "epsilon_proven_high",
    "proven_status": "proven_status",
    "epsilon_audited": "epsilon_audited",
    "epsilon_ideal_audit": "epsilon_ideal",
    "audit": "audit",
    "epsilon_image_level": "epsilon_image_level",
    "accuracy": "accuracy",
    "accuracy_low": "ci_low",
    "accuracy_high": "ci_high",
    **{name: name for name in ("seeds", "reason", "runs")},
}
"""The columns of rows that the CSV has, and their names there."""


def tidy(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the table for programs; its CSV has no empty cell: "none" stands where
    there is nothing.
    """
    if not len(rows):
        return pd.DataFrame(columns=list(_CSV_COLUMNS.values()))
    table = rows.assign(
        role=rows["repaired"].map({True: "repaired", False: "published"}),
        claimed_status=[status_of(row, "claimed") for row in each_row(rows)],
        proven_status=[status_of(row, "proven") for row in each_row(rows)],
        printed=_filled(rows["printed"], "not printed"),
        epsilon_ideal_audit=_filled(rows["epsilon_ideal_audit"], "none"),
        epsilon_image_level=_filled(rows["epsilon_image_level"], "none"),
        runs="results/runs/" + rows["folder"],
    )
    return table[list(_CSV_COLUMNS)].rename(columns=_CSV_COLUMNS)


def _filled(values: pd.Series, text: str) -> pd.Series:
    return values.astype(object).where(values.notna(), text)


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
    listed = [_fields(row) for row in each_row(rows)]
    return Listing(title=TITLE, rows=listed, notes=NOTES)


def _fields(row: Any) -> dict[str, Formatted]:
    proven = format_range(row.epsilon_proven_low, row.epsilon_proven_high)
    repaired = " (repaired)" if row.repaired else ""
    return {
        "paper": format_text(row.paper),
        "method": format_text(f"{row.method}, {row.variant}{repaired}"),
        "data": format_text(f"{row.dataset} {row.task}"),
        "unit": format_text(row.unit),
        "δ": format_number(row.delta, "g"),
        "z": format_number(row.accounted_multiplier),
        "printed ε": format_number(row.printed, nothing="not printed"),
        "claimed ε": format_number(row.epsilon_claimed, note=status_of(row, "claimed")),
        "proven ε": format_text(f"{proven.text} ({status_of(row, 'proven')})"),
        "audited ε, at least": format_number(
            row.epsilon_audited,
            note=_OTHER_MECHANISM if row.audit_saw_another_mechanism else "",
        ),
        "of an ideal attacker": format_number(row.epsilon_ideal_audit, nothing="none"),
        "accuracy, %": format_number(row.accuracy, ".1f"),
    }


def rows_of_figure(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that the figure draws: of each table those of its first task,
    each repair directly after what it repairs.

    A table's further tasks have the same mechanisms and show the same. Of a paper whose
    tables show nothing private, the rows of its figures are drawn.
    """
    papers_with_tables = {row.paper for row in each_row(rows) if row.shown_in}
    first_tasks: dict[tuple[str, str], tuple[str, str]] = {}
    is_drawn = []
    for row in each_row(rows):
        tables = [(paper, item) for paper, item, *_ in row.shown_in]
        if not tables and row.paper not in papers_with_tables:
            tables = [(row.paper, "")]
        task = (row.dataset, row.task)
        firsts = [first_tasks.setdefault(table, task) for table in tables]
        is_drawn.append(task in firsts)
    drawn = rows[is_drawn].reset_index(drop=True)
    repaired = [_repaired_row(row, drawn) for row in each_row(drawn)]
    order = sorted(
        range(len(drawn)),
        key=lambda number: (
            number if repaired[number] is None else repaired[number],
            repaired[number] is not None,
        ),
    )
    return drawn.iloc[order].reset_index(drop=True)


def _repaired_row(row: Any, rows: pd.DataFrame) -> int | None:
    """Return the number of the published row that a row repairs, of the same unit."""
    targets = {
        (paper, item, repairs) for paper, item, _, repairs in row.shown_in if repairs
    }
    for number, candidate in enumerate(each_row(rows)):
        cells = {(paper, item, series) for paper, item, series, _ in candidate.shown_in}
        is_published = not candidate.repaired
        if targets & cells and candidate.unit == row.unit and is_published:
            return number
    return None


def drawn_numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the figure."""
    columns = [
        *("paper", "method", "variant", "role", "dataset", "task", "unit", "delta"),
        *("epsilon_claimed", "epsilon_proven_high", "epsilon_audited"),
        *("accuracy", "ci_low", "ci_high", "seeds"),
    ]
    table = tidy(rows_of_figure(rows))[columns]
    table.insert(0, "number", range(1, len(table) + 1))
    return table
