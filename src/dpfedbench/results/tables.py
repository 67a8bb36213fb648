"""Tables of a paper: tidy CSV for programs, Markdown for readers."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.results.audits import mark_rows
from dpfedbench.results.formats import Listing, notice_sentences, plural, span
from dpfedbench.results.items import Item
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import each_row, interval_columns, read_rows
from dpfedbench.results.table_columns import csv_columns, listing_of

_HEADINGS = {
    "accuracy": "accuracy, %",
    "share": "accuracy, % of that of {reference}",
    "milliseconds": "time, ms a task",
    "validation_accuracy": "accuracy, % on validation tasks",
}
"""Headings of what a table shows."""
_INTERVALS = {
    "seeds": (
        "over the per-seed means (Student's t); each seed draws clients, weights, noise"
        " and tasks anew"
    ),
    "tasks": (
        "over the test tasks of the one seed (Student's t); it does not show how seeds"
        " differ"
    ),
    "records": (
        "over the test records of the one seed (Student's t); it does not show how"
        " seeds differ"
    ),
}
_TIME_NOTE = (
    "Time is that of a training round, divided by its number of clients, without"
    " validation. It was measured on the machine and with the threads that"
    " training.json names; the papers used other machines."
)
_PERSONAL_NOTE = (
    "Own models are those that the clients use themselves, tested on records of each"
    " client that training leaves out; spread is the standard deviation over clients."
    " Only the simulation knows these numbers, and no ε covers them."
)
_EPSILON_NOTE = (
    "A row without a claim of privacy has – for ε, and nothing in the CSV. Of a range"
    " the CSV has the upper end. An ε is proved unless another word stands beside it;"
    " the table of privacy and the page say whether an audit exceeds it."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a paper.

    Attributes:
        item: its description.
        rows: one for each cell, as `summary.summarize`, and further the columns
            `value`, `value_low`, `value_high` (accuracy in percent, or milliseconds),
            `published`, `spread` (the printed ±), `comparable` (whether the two may be
            compared), and `chosen` (the best of its series on the validation tasks,
            where settings are searched).
        quantity: what `value` is: `accuracy`, `share` (of the accuracy of a reference
            method), `milliseconds`, or `validation_accuracy` of a search.
        reference: in a table of shares, title of the method whose accuracy is the whole.
    """

    item: Item
    rows: pd.DataFrame
    quantity: str
    reference: str

    @property
    def options(self) -> list[str]:
        """Options of its columns in `table_columns.csv`."""
        unit = "percent"
        if self.quantity == "milliseconds":
            unit = "milliseconds"
        return [unit, self.quantity, *self.item.spec.get("columns", ())]


def read(
    item: Item,
    results: str | Path,
    published: str | Path,
    *,
    audit_count: int | None = None,
    runs: pd.DataFrame | None = None,
) -> Table:
    """Read a table's runs and the published numbers.

    Args:
        item: the description of the table.
        results: the results folder.
        published: the file of published numbers.
        audit_count: audits shown in the same place, which must be there: an ε that its
            audit exceeds is marked. None: no ε is marked.
        runs: the frame of its runs, where it has been collected already.

    Raises:
        BenchError: a file is missing or damaged.
    """
    rows = read_rows(results, item.cells, runs=runs)
    if audit_count is not None:
        rows = mark_rows(rows, audit_count)
    quantity = _quantity(item, rows)
    references = rows[rows["series"] == item.spec.get("share_of")]
    if quantity == "share":
        values = _shares(rows, references)
    else:
        ends = [quantity, f"{quantity}_low", f"{quantity}_high"]
        values = rows[ends].set_axis(["value", "value_low", "value_high"], axis=1)
    rows = pd.concat([rows, values], axis=1)
    printed = read_published(published, item.paper, item.name)
    rows = _with_published(rows, printed, is_time=quantity == "milliseconds")
    searched = rows[rows["searched"] > 0]
    best = searched.groupby(["series", "dataset", "task"])["value"].idxmax()
    rows["chosen"] = rows.index.isin(best)
    return Table(
        item=item,
        rows=rows,
        quantity=quantity,
        reference=str(references["title"].max()),
    )


def _quantity(item: Item, rows: pd.DataFrame) -> str:
    if "share_of" in item.spec and (rows["series"] == item.spec["share_of"]).any():
        return "share"
    if (rows["searched"] > 0).any():
        return "validation_accuracy"
    return str(item.spec.get("value", "accuracy"))


def _shares(rows: pd.DataFrame, references: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies as shares of the reference's on the same data, seed by seed."""
    by_data = references.set_index(["dataset", "task"])["accuracies"]
    shares = []
    for row in each_row(rows):
        # As many seeds as both have.
        pairs = zip(row.accuracies, by_data[row.dataset, row.task], strict=False)
        values = [100 * accuracy / whole for accuracy, whole in pairs]
        shares.append(interval_columns("value", values))
    return pd.DataFrame(shares)


def _with_published(
    rows: pd.DataFrame, printed: pd.DataFrame, *, is_time: bool
) -> pd.DataFrame:
    """Return rows with the published number of each. Times of another machine are not
    comparable.
    """
    printed = printed.rename(
        columns={"dataset": "published_dataset", "value": "published"}
    ).drop(columns=["x", "source"])
    keys = ["published_dataset", "task", "method", "variant"]
    rows = rows.merge(
        printed.drop_duplicates(keys),
        on=keys,
        how="left",
    )
    is_same = rows["published"].notna() & (rows["mismatch"] == "")
    return rows.assign(comparable=is_same & (not is_time))


def tidy(table: Table) -> pd.DataFrame:
    """Return one row for each cell, for programs.

    `value` and its 95 % interval are accuracies in percent (or milliseconds for each
    client); `epsilon_claimed` and `epsilon_proven` the upper ends of the claimed and the
    proven ε, empty where no privacy is claimed; `unit` is whom ε protects; `published`
    the paper's number, and `comparable` whether ours was measured on its data at its
    scale.
    """
    return csv_columns(table.rows, "table", *table.options)


def listing(table: Table) -> Listing:
    """Return the table for readers."""
    rows = table.rows.copy()
    rows["published_note"] = [_published_note(row) for row in each_row(rows)]
    ends = rows[["accuracy", "accuracy_low", "accuracy_high"]].where(rows["chosen"])
    rows[["chosen_accuracy", "chosen_low", "chosen_high"]] = ends
    sentences = dict.fromkeys(text.replace("..", ".") for text in _notes(table))
    value = _HEADINGS[table.quantity].format(reference=table.reference)
    return listing_of(
        rows,
        "table",
        *table.options,
        title=table.item.title,
        notes=list(sentences),
        value=f"{value} (95 % interval)",
        unit="ms" if table.quantity == "milliseconds" else "%",
    )


def _published_note(row: Any) -> str:
    notes = []
    if not math.isnan(row.spread):
        notes.append(f"± {row.spread:g}")
    if not math.isnan(row.published) and not row.comparable:
        notes.append("not comparable")
    return ", ".join(notes)


def _notes(table: Table) -> Iterator[str]:
    """Yield what a reader of the table has to know, a sentence each."""
    rows = table.rows
    if table.quantity == "share":
        yield (
            f"Values are shares of the accuracy of {table.reference}, seed by seed;"
            " so is the interval."
        )
    if table.quantity == "milliseconds":
        yield _TIME_NOTE
    else:
        yield from _accuracy_notes(table)
    if "personal" in table.options:
        yield _PERSONAL_NOTE
    yield _EPSILON_NOTE
    for row in each_row(rows):
        if row.claimed_explanation:
            yield f"Claimed ε, {row.title}: {row.claimed_explanation}."
        if row.proven_explanation:
            yield f"Proven ε, {row.title}: {row.proven_explanation}."
        if row.mismatch and not math.isnan(row.published):
            yield f"Not comparable with the published value: {row.mismatch}."
    yield from notice_sentences([_name(row) for row in each_row(rows)], rows["notices"])


def _accuracy_notes(table: Table) -> Iterator[str]:
    rows = table.rows
    counted = rows["test_unit"].iloc[0]
    seeds = plural(span(rows["seeds"]), "seed")
    count = plural(span(rows["test_count"] // rows["seeds"]), counted)
    if table.quantity == "validation_accuracy":
        yield (
            "Each method was searched with at most"
            f" {plural(rows['searched'].max(), 'run')}. The settings with the best"
            " accuracy on the validation tasks are chosen, and only their meta-test is"
            " read."
        )
    yield (
        f"Accuracy is the mean of the per-seed means over the test {counted}s"
        f" ({seeds}, {count} each)."
    )
    intervals = set(rows["interval_over"])
    kinds = [text for kind, text in _INTERVALS.items() if kind in intervals]
    yield f"The interval is {'. In rows of one seed it is '.join(kinds)}."


def _name(row: Any) -> str:
    """Return data, task, method and variant, as a text."""
    variant = f" ({row.variant})" if row.variant else ""
    return f"{row.dataset} {row.task}, {row.title}{variant}"
