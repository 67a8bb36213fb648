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
from dpfedbench.results.formats import (
    Formatted,
    Listing,
    format_number,
    format_range,
    format_text,
    status_of,
)
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import each_row, read_rows
from dpsum.ledger import check_same_mechanism

TITLE = "Three ε: as claimed, that holds, audited"
PRINTED_ITEM = "epsilon"
"""The item of config/published.csv under which a paper's printed ε stand; x is the
noise multiplier.
"""


def configurations(cells: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the private configurations that some cells show, one mapping for each run.

    A configuration has the name of the first table that shows it, or of the first
    figure without one, and the seeds of all. `shown_in` lists (paper, item, series,
    repairs) of its table cells.
    """
    private = [cell for cell in cells if cell["private"] and cell["kind"] != "account"]
    private.sort(key=lambda cell: not cell["kind"].endswith("table"))
    by_folder: dict[str, list[Mapping[str, Any]]] = {}
    for cell in private:
        by_folder.setdefault(str(Path(cell["run"]).parent), []).append(cell)
    rows = []
    for number, (_, of_folder) in enumerate(by_folder.items()):
        first = of_folder[0]
        appearances = [
            (cell["paper"], cell["item"], cell["series"], cell["repairs"])
            for cell in of_folder
            if cell["kind"] == "table"
        ]
        seeds = {cell["seed"]: cell["run"] for cell in reversed(of_folder)}
        shared = {
            **first,
            "item": PRINTED_ITEM,
            "cell": number,
            "variant": first["variant"] or first["label"],
            "test": "",
            "shown_in": tuple(dict.fromkeys(appearances)),
        }
        for seed in sorted(seeds):
            rows.append({**shared, "seed": seed, "run": seeds[seed]})
    return rows


def read(
    cells: Iterable[Mapping[str, Any]], results: str | Path, published: str | Path
) -> pd.DataFrame:
    """Return one row for each private configuration and each unit that it protects.

    Args:
        cells: of tables and figures, as `items.Item.cells`.
        results: the results folder.
        published: the file of published numbers.

    Returns:
        The columns of `summary.summarize`, and further `shown_in`, `repaired` (whether
        it repairs a claim that has no proof), `printed` (the paper's ε or NaN), `audit`
        (how the bound was found), `audit_note` and `reason` (what each number rests
        on).

    Raises:
        BenchError: a file of a run is missing or damaged, or the mechanism of its
            ledger is not the one audited.
    """
    rows = read_rows(results, configurations(cells), by_unit=True)
    if not len(rows):
        return rows
    for row in each_row(rows):
        _check_audit(row, Path(results, "runs"))
    printed = {
        paper: read_published(published, paper, PRINTED_ITEM)
        for paper in rows["paper"].unique()
    }
    rows = mark_rows(rows)
    rows["accounted_multiplier"] = rows["accounted_multiplier"].replace(0, math.inf)
    rows["accounted_multiplier"] = rows["accounted_multiplier"].fillna(math.inf)
    rows["repaired"] = [
        any(repairs for *_, repairs in cells) for cells in rows["shown_in"]
    ]
    rows["printed"] = [_printed(row, printed[row.paper]) for row in each_row(rows)]
    rows["audit_note"] = [
        "of another mechanism than the ledger's" if is_other else ""
        for is_other in rows["audit_saw_another_mechanism"]
    ]
    rows["audit"] = [
        f"{row.audit_method}, {100 * row.audit_confidence:g} % confidence"
        for row in each_row(rows)
    ]
    rows["reason"] = [_reason(row) for row in each_row(rows)]
    return rows


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
        f"holds: {row.proven_explanation}",
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


def tidy(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the table for programs; its CSV has no empty cell: "none" stands where
    there is nothing.
    """
    return pd.DataFrame(
        {
            "paper": row.paper,
            "method": row.method,
            "variant": row.variant,
            "role": "repaired" if row.repaired else "published",
            "dataset": row.dataset,
            "task": row.task,
            "unit": row.unit,
            "adjacency": row.adjacency,
            "observer": row.observer,
            "delta": row.delta,
            "noise_multiplier": row.accounted_multiplier,
            "epsilon_printed": _number_or(row.printed, "not printed"),
            "epsilon_claimed": row.epsilon_claimed,
            "claimed_status": status_of(row, "claimed"),
            "epsilon_holds_low": row.epsilon_proven_low,
            "epsilon_holds_high": row.epsilon_proven_high,
            "holds_status": status_of(row, "proven"),
            "epsilon_audited": row.epsilon_audited,
            "epsilon_ideal": _number_or(row.epsilon_ideal_audit, "none"),
            "audit": f"{row.audit}, {row.audit_note}" if row.audit_note else row.audit,
            "epsilon_image_level": _number_or(row.epsilon_image_level, "none"),
            "accuracy": row.accuracy,
            "ci_low": row.accuracy_low,
            "ci_high": row.accuracy_high,
            "seeds": row.seeds,
            "reason": row.reason,
            "runs": f"results/runs/{row.folder}",
        }
        for row in each_row(rows)
    )


def _number_or(value: float, text: str) -> float | str:
    return text if math.isnan(value) else value


_PAGE_COLUMNS = (
    *("method", "dataset", "task", "accuracy", "epsilon_printed", "epsilon_claimed"),
    *("epsilon_holds", "epsilon_audited", "epsilon_ideal", "epsilon_image_level"),
    *("claimed_status", "holds_status", "paper", "role", "unit", "adjacency"),
    *("observer", "delta", "noise_multiplier", "audit", "ci", "seeds", "reason"),
    "runs",
)


def page_listing(rows: pd.DataFrame) -> Listing:
    """Return all columns of the CSV, for the page."""
    listed = []
    records = tidy(rows).to_dict("records")
    for row, record in zip(each_row(rows), records, strict=True):
        fields = {
            str(name): (
                format_text(value)
                if isinstance(value, str)
                else format_number(value, ".4g", nothing="none")
            )
            for name, value in record.items()
        }
        fields["method"] = format_text(row.title, row.variant)
        fields["epsilon_holds"] = format_range(
            row.epsilon_proven_low, row.epsilon_proven_high, ".4g", nothing="none"
        )
        fields["epsilon_audited"] = format_number(
            row.epsilon_audited, ".4g", nothing="none", note=row.audit_note
        )
        fields["ci"] = format_range(row.accuracy_low, row.accuracy_high, ".4g")
        listed.append({_heading(name): fields[name] for name in _PAGE_COLUMNS})
    return Listing(title=TITLE, rows=listed, notes=NOTES)


def _heading(column: str) -> str:
    words = column.replace("_", " ")
    return words.replace("epsilon", "ε").replace("delta", "δ")


NOTES = (
    (
        "ε printed: the number in the paper, at the paper's scale. ε recomputed as"
        " claimed: the paper's accounting, applied to the run made here. ε that holds:"
        " proved for the sampler that ran and for the observer. ε audited: a lower"
        " bound from canaries, with 95 % confidence; a low bound proves nothing. Ideal"
        " attacker: the bound that the best possible attacker reaches in half of all"
        " audits with as many canaries. docs/privacy.md explains each."
    ),
    (
        "Audited above what holds: the lower bound exceeds the ε. With correct code"
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
    return Listing(
        title="Three ε beside every private number", rows=listed, notes=NOTES
    )


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
        "ε printed": format_number(row.printed, nothing="not printed"),
        "ε recomputed as claimed": format_number(
            row.epsilon_claimed, note=status_of(row, "claimed")
        ),
        "ε that holds": format_text(f"{proven.text} ({status_of(row, 'proven')})"),
        "ε audited, at least": format_number(row.epsilon_audited, note=row.audit_note),
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
        *("epsilon_claimed", "epsilon_holds_high", "epsilon_audited"),
        *("accuracy", "ci_low", "ci_high", "seeds"),
    ]
    table = tidy(rows_of_figure(rows))[columns]
    table.insert(0, "number", range(1, len(table) + 1))
    return table
