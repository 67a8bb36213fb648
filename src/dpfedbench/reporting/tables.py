"""Tables: what runs say as rows of typed values, and from these a tidy CSV for programs and Markdown for people."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import Interval
from dpfedbench.reporting import values
from dpfedbench.reporting.described import Cell, Item
from dpfedbench.reporting.results import CellResult, attributed_notices, read_cell, read_published
from dpfedbench.reporting.values import Shown

_COLUMNS = {"weights": ("weights", "parameters"), "seconds": ("training, s", "seconds")}
"""Headings, and keys of training.json."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A cell of the plan with its value, what its runs say of privacy, and the published value where there is one.

    `comparable` is whether the two may be read against each other; `cell.mismatch` says why not.
    """

    cell: Cell
    result: CellResult
    value: Interval
    published: float | None
    comparable: bool

    @property
    def place(self) -> str:
        """What it is of, as a text."""
        variant = f" ({self.cell.variant})" if self.cell.variant else ""
        return f"{self.cell.dataset} {self.cell.task}, {self.cell.title}{variant}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table; `of_time` is whether it shows the time of training a client, in place of accuracy."""

    item: Item
    rows: Sequence[Row]
    of_time: bool

    def fields(self, row: Row) -> dict[str, Shown]:
        """A row for people, by the column's heading."""
        cell, result = row.cell, row.result
        name = f"{cell.title}, {cell.variant}" if cell.variant else cell.title
        printed = values.number(row.published, "g")
        if row.published is not None and not row.comparable:
            printed = dataclasses.replace(printed, note="not comparable")
        return {
            "data": values.words(cell.dataset),
            "task": values.words(cell.task),
            "method": values.words(name),
            self.measured: (values.milliseconds if self.of_time else values.accuracy)(row.value),
            "ε claimed": values.epsilon(result.claimed),
            "ε that holds": values.epsilon(result.holds),
            "δ": values.number(result.delta, "g"),
            "unit": values.words(result.unit or ""),
            f"published, {'ms' if self.of_time else '%'}": printed,
        } | {_COLUMNS[name][0]: values.number(_mean(row, name), ",.0f") for name in self.columns}

    @property
    def columns(self) -> Sequence[str]:
        """What is shown beside the value."""
        return self.item.spec.get("columns", ())

    @property
    def measured(self) -> str:
        """The heading of what was measured."""
        return f"{'time, ms a task' if self.of_time else 'accuracy, %'} (95 % interval)"


def _mean(row: Row, column: str) -> float:
    """The mean over seeds of a number in training.json."""
    key = _COLUMNS[column][1]
    return math.fsum(float(run.training[key]) for run in row.result.runs) / row.result.seeds


def read(item: Item, results: str | Path, published: str | Path) -> Table:
    """The table that a description asks for, from its runs' files and the published numbers.

    Raises:
        BenchError: a file is missing or damaged, or a run for a table of time was trained before times were written.
    """
    of_time = item.spec.get("value", "accuracy") == "milliseconds"
    printed = {
        (number.dataset, number.task, number.method, number.variant): number.value
        for number in reversed(read_published(published, item.paper, item.name))
    }
    rows = []
    for cell in item.cells:
        result = read_cell(results, cell.folders)
        value = result.milliseconds if of_time else result.accuracy
        if value is None:
            raise BenchError(
                f"{item.paper} {item.name} shows times, which an older run does not have: "
                "delete its folder and run the workflow again"
            )
        known = printed.get((cell.published_dataset, cell.task, cell.method, cell.variant))
        # Nobody has the machine of the paper.
        comparable = known is not None and not cell.mismatch and not of_time
        rows.append(Row(cell=cell, result=result, value=value, published=known, comparable=comparable))
    return Table(item=item, rows=rows, of_time=of_time)


def tidy(table: Table) -> pd.DataFrame:
    """One row for each cell.

    `value` and its 95 % interval are accuracies in percent (or milliseconds a client); `epsilon_claimed` and
    `epsilon_holds` the upper ends of what the two profiles give, empty where no privacy is claimed; `unit` what is
    protected; `published` the paper's number, and `comparable` whether ours was measured on its data at its scale.
    """
    return pd.DataFrame(
        {
            "dataset": row.cell.dataset,
            "task": row.cell.task,
            "method": row.cell.method,
            "variant": row.cell.variant,
            "value": row.value.mean,
            "ci_low": row.value.low,
            "ci_high": row.value.high,
            "seeds": row.result.seeds,
            "epsilon_claimed": row.result.claimed.high,
            "epsilon_holds": row.result.holds.high,
            "delta": math.nan if row.result.delta is None else row.result.delta,
            "unit": row.result.unit,
            "published": row.published,
            "comparable": row.comparable,
        }
        | {name: _mean(row, name) for name in table.columns}
        for row in table.rows
    )


def to_markdown(table: Table, command: str) -> str:
    """The table for people: measured on what, how sure, how private, and how to make it again."""
    rows = [table.fields(row) for row in table.rows]
    texts = [[shown.bold if name == table.measured else shown.line for name, shown in row.items()] for row in rows]
    lines = [
        f"# {values.escaped(table.item.spec['title'])}",
        "",
        *values.markdown_table(list(rows[0]), texts),
        "",
        *(f"- {values.escaped(note)}" for note in notes(table)),
        "",
        "Made by",
        "",
        f"    {command}",
        "",
        "from",
        "",
        *(f"- {values.escaped(row.place)}: `{_folders(row.cell)}`" for row in table.rows),
    ]
    return "\n".join(lines) + "\n"


def notes(table: Table) -> list[str]:
    """What a reader of the table must be told, a sentence each."""
    if table.of_time:
        said = [
            "Time is what a round of training takes over its clients, without validation, on the machine and with the "
            "threads that training.json names; the published times are another machine's."
        ]
    else:
        counted, results = table.rows[0].result.counted, [row.result for row in table.rows]
        seeds = values.plural(values.span(result.seeds for result in results), "seed")
        tasks = values.plural(values.span(result.tasks // result.seeds for result in results), counted)
        said = [
            f"Accuracy is the mean over seeds of the mean over each seed's test {counted}s ({seeds}, {tasks} each).",
            _interval_note(table.rows),
        ]
    said.append("ε is – here and empty in the CSV where no privacy is claimed; the CSV has the upper end of a range.")
    for row in table.rows:
        for profile, epsilon in (("ε claimed", row.result.claimed), ("ε that holds", row.result.holds)):
            if epsilon.explanation:
                said.append(f"{profile}, {row.cell.title}: {epsilon.explanation.rstrip('.')}.")
    said += attributed_notices([(row.place, row.result) for row in table.rows])
    for row in table.rows:
        if row.cell.mismatch and row.published is not None:
            said.append(f"Not comparable with the published value: {row.cell.mismatch}.")
    return list(dict.fromkeys(said))


def _interval_note(rows: Sequence[Row]) -> str:
    over = {row.result.accuracy.over for row in rows}
    means = {
        "seeds": "over seeds (Student's t; each seed draws clients, weights, noise and tasks anew)",
        "tasks": "over the tasks of a single seed (Student's t), which leaves out how seeds differ",
        "records": "over the records of a single seed (Student's t), which leaves out how seeds differ",
    }
    said = [means[key] for key in means if key in over]
    return f"The interval is {'; with one seed it is '.join(said)}."


def _folders(cell: Cell) -> str:
    """The runs' common folder, with the seeds in braces as a shell writes them."""
    seeds = [Path(folder).name.removeprefix("seed") for folder in cell.folders]
    names = f"seed{seeds[0]}" if len(seeds) == 1 else f"seed{{{','.join(seeds)}}}"
    return f"results/runs/{cell.group}/{names}"
