"""Tables of a paper: tidy CSV for programs, Markdown for readers."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import Interval, mean_interval
from dpfedbench.results.audits import mark_rows
from dpfedbench.results.formats import (
    Formatted,
    Listing,
    format_accuracy,
    format_epsilon,
    format_milliseconds,
    format_number,
    format_text,
    notice_sentences,
    plural,
    span,
)
from dpfedbench.results.items import Item
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import each_row, read_rows, row_interval

_EXTRA_COLUMNS = {
    "weights": ("weights", "parameters"),
    "seconds": ("training, s", "seconds"),
}
"""Headings of the columns that a table may ask for, and their columns in a row."""

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
        marked: whether an ε is marked where its audit exceeds it.
    """

    item: Item
    rows: pd.DataFrame
    marked: bool = False

    @property
    def is_of_time(self) -> bool:
        """Whether it shows the training time for each client, not accuracy."""
        return bool(self.item.spec.get("value", "accuracy") == "milliseconds")

    @property
    def is_searched(self) -> bool:
        """Whether its rows are settings among which a search chooses."""
        return bool((self.rows["searched"] > 0).any())

    @property
    def reference(self) -> str:
        """Title of the method whose accuracy the others are shown as shares of, or
        "".
        """
        shared = self.rows[self.rows["series"] == self.item.spec.get("share_of")]
        return str(shared["title"].iloc[0]) if len(shared) else ""

    @property
    def value_heading(self) -> str:
        """The heading of the measured value."""
        if self.reference:
            measured = f"accuracy, % of that of {self.reference}"
        elif self.is_of_time:
            measured = "time, ms a task"
        elif self.is_searched:
            measured = "accuracy, % on validation tasks"
        else:
            measured = "accuracy, %"
        return f"{measured} (95 % interval)"


def read(
    item: Item,
    results: str | Path,
    published: str | Path,
    *,
    marked: bool = False,
    audit_count: int | None = None,
    runs: pd.DataFrame | None = None,
) -> Table:
    """Read a table's runs and the published numbers.

    Args:
        item: the description of the table.
        results: the results folder.
        published: the file of published numbers.
        marked: whether to mark an ε that its audit exceeds. The audits must be there
            then; without them a note says where they are.
        audit_count: audits shown in the same place; None: those of this table.
        runs: the frame of its runs, where it has been collected already.

    Raises:
        BenchError: a file is missing or damaged, or a run has no value to show.
    """
    rows = read_rows(results, item.cells, runs=runs)
    if marked:
        rows = mark_rows(rows, audit_count)
    return query(item, rows, read_published(published, item.paper, item.name), marked)


def query(
    item: Item, rows: pd.DataFrame, printed: pd.DataFrame, marked: bool = False
) -> Table:
    """Return the table of some rows, with the published numbers beside them."""
    table = Table(item=item, rows=rows, marked=marked)
    values = [_value(table, row) for row in each_row(rows)]
    keys = ["published_dataset", "task", "method", "variant"]
    numbers = printed.rename(
        columns={"dataset": "published_dataset", "value": "published"}
    ).drop_duplicates(keys)
    rows = rows.merge(numbers[[*keys, "published", "spread"]], on=keys, how="left")
    rows = rows.assign(
        value=[value.mean for value in values],
        value_low=[value.low for value in values],
        value_high=[value.high for value in values],
        # Times of another machine are not comparable.
        comparable=rows["published"].notna()
        & (rows["mismatch"] == "")
        & (not table.is_of_time),
    )
    best = rows.groupby(["series", "dataset", "task"])["value"].idxmax()
    rows["chosen"] = rows.index.isin(best) & (rows["searched"] > 0)
    return dataclasses.replace(table, rows=rows)


def _value(table: Table, row: Any) -> Interval:
    """Return the interval that a table shows of a row."""
    item = table.item
    reference = table.rows[
        (table.rows["series"] == item.spec.get("share_of"))
        & (table.rows["dataset"] == row.dataset)
        & (table.rows["task"] == row.task)
    ]
    if len(reference):
        # As many seeds as both have.
        pairs = zip(row.accuracies, reference["accuracies"].iloc[0], strict=False)
        shares = [100 * accuracy / whole for accuracy, whole in pairs]
        return mean_interval(shares, over="seeds")
    if table.is_of_time:
        if math.isnan(row.milliseconds):
            raise BenchError(
                f"{item.paper} {item.name} shows times, but {row.folder} has none:"
                " leave out private runs with secret cohorts, or delete the folder if"
                " an older version made it, and run the workflow again"
            )
        return row_interval(row, "milliseconds")
    if row.searched:
        if math.isnan(row.validation_accuracy):
            raise BenchError(
                f"{item.paper} {item.name} chooses by validation, which a run of"
                f" {row.folder} does not have: delete that folder and run the workflow"
                " again"
            )
        return row_interval(row, "validation_accuracy")
    return row_interval(row)


def tidy(table: Table) -> pd.DataFrame:
    """Return one row for each cell, for programs.

    `value` and its 95 % interval are accuracies in percent (or milliseconds for each
    client); `epsilon_claimed` and `epsilon_proven` the upper ends of the claimed and the
    proven ε, empty where no privacy is claimed; `unit` is whom ε protects; `published`
    the paper's number, and `comparable` whether ours was measured on its data at its
    scale.
    """
    columns = {
        **{name: name for name in ("dataset", "task", "method", "variant", "value")},
        **{"value_low": "ci_low", "value_high": "ci_high", "seeds": "seeds"},
        "epsilon_claimed": "epsilon_claimed",
        "epsilon_proven_high": "epsilon_proven",
        **{name: name for name in ("delta", "unit", "published", "comparable")},
    }
    if table.is_searched:
        columns["chosen"] = "chosen"
    tidied = table.rows[list(columns)].rename(columns=columns)
    for name in table.item.spec.get("columns", ()):
        tidied[name] = table.rows[_EXTRA_COLUMNS[name][1]]
    return tidied


def listing(table: Table) -> Listing:
    """Return the table for readers."""
    rows = [_fields(table, row) for row in each_row(table.rows)]
    return Listing(title=table.item.title, rows=rows, notes=notes(table))


def _fields(table: Table, row: Any) -> dict[str, Formatted]:
    """Return a row for readers, by the columns' headings."""
    value = Interval(
        mean=row.value, low=row.value_low, high=row.value_high, count=0, over=""
    )
    format_value = format_milliseconds if table.is_of_time else format_accuracy
    fields = {
        "method": format_text(row.title, row.variant),
        "data": format_text(row.dataset),
        "task": format_text(row.task),
        table.value_heading: format_value(value),
    }
    if table.is_searched:
        accuracy = format_accuracy(row_interval(row))
        fields["accuracy, % at the meta-test, of the chosen"] = (
            accuracy if row.chosen else format_text("")
        )
    published_notes = []
    if not math.isnan(row.spread):
        published_notes.append(f"± {row.spread:g}")
    if not math.isnan(row.published) and not row.comparable:
        published_notes.append("not comparable")
    fields |= {
        "claimed ε": format_epsilon(row, "claimed"),
        "proven ε": format_epsilon(row, "proven"),
        f"published, {'ms' if table.is_of_time else '%'}": format_number(
            row.published, "g", note=", ".join(published_notes)
        ),
        "δ": format_number(row.delta, "g"),
        "unit": format_text(row.unit),
    }
    for name in table.item.spec.get("columns", ()):
        heading, column = _EXTRA_COLUMNS[name]
        fields[heading] = format_number(getattr(row, column), ",.0f")
    return fields


def notes(table: Table) -> list[str]:
    """Return what a reader of the table has to know, a sentence each."""
    rows = table.rows
    sentences = []
    if table.reference:
        sentences.append(
            f"Values are shares of the accuracy of {table.reference}, seed by seed;"
            " so is the interval."
        )
    if table.is_of_time:
        sentences.append(_TIME_NOTE)
    else:
        sentences += _accuracy_notes(table)
    sentences.append(
        "A row without a claim of privacy has – for ε, and nothing in the CSV. Of a"
        " range the CSV has the upper end."
    )
    if not table.marked and (rows["unit"] != "").any():
        sentences.append(
            "A proven ε is proved unless another word stands beside it. The table of"
            " privacy and the page say whether an audit exceeds it."
        )
    for row in each_row(rows):
        if row.claimed_explanation:
            sentences.append(f"Claimed ε, {row.title}: {row.claimed_explanation}.")
        if row.proven_explanation:
            sentences.append(f"Proven ε, {row.title}: {row.proven_explanation}.")
        if row.mismatch and not math.isnan(row.published):
            sentences.append(
                f"Not comparable with the published value: {row.mismatch}."
            )
    sentences += notice_sentences((_name(row), row.notices) for row in each_row(rows))
    return list(dict.fromkeys(text.replace("..", ".") for text in sentences))


_TIME_NOTE = (
    "Time is that of a training round, divided by its number of clients, without"
    " validation. It was measured on the machine and with the threads that"
    " training.json names; the papers used other machines."
)


def _accuracy_notes(table: Table) -> Iterator[str]:
    rows = table.rows
    counted = rows["test_unit"].iloc[0]
    seeds = plural(span(rows["seeds"]), "seed")
    count = plural(span(rows["test_count"] // rows["seeds"]), counted)
    if table.is_searched:
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
