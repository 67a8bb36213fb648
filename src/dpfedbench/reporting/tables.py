"""Tables: the results of runs as rows of typed values, written as tidy CSV for programs
and as Markdown for people.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import Interval, mean_interval
from dpfedbench.reporting import values
from dpfedbench.reporting.audited import Audits
from dpfedbench.reporting.described import Cell, Item
from dpfedbench.reporting.results import (
    CellResult,
    attributed_notices,
    read_cell,
    read_published,
)
from dpfedbench.reporting.values import Shown

_COLUMNS = {"weights": ("weights", "parameters"), "seconds": ("training, s", "seconds")}
"""Headings, and keys of training.json."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A cell of the plan with its value, what its runs say of privacy, and the
    published value where there is one.

    `comparable` is whether the two may be read against each other; `cell.mismatch` says
    why not. `spread` is the ± that the paper prints. `chosen` is whether it is the best
    of its series on the validation tasks, where settings are searched.
    """

    cell: Cell
    result: CellResult
    value: Interval
    published: float | None
    comparable: bool
    spread: float | None = None
    chosen: bool = False

    @property
    def place(self) -> str:
        """Data, task, method and variant, as a text."""
        variant = f" ({self.cell.variant})" if self.cell.variant else ""
        return f"{self.cell.dataset} {self.cell.task}, {self.cell.title}{variant}"

    def mean(self, column: str) -> float:
        """The mean over seeds of a number in training.json; NaN where a run does not
        tell it.
        """
        told = [run.training[_COLUMNS[column][1]] for run in self.result.runs]
        return (
            math.nan
            if None in told
            else math.fsum(map(float, told)) / self.result.seeds
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table; `audited` is whether an ε that holds is marked where its audit is above
    it.

    One whose series are searched shows the accuracy on validation tasks; of the
    settings that this chooses, it also shows the accuracy at the meta-test.
    """

    item: Item
    rows: Sequence[Row]
    audited: bool = False

    @property
    def of_time(self) -> bool:
        """Whether it shows the time of training a client, in place of accuracy."""
        return _of_time(self.item)

    @property
    def shared(self) -> Cell | None:
        """Whose accuracy the others are shown as shares of; None where they are shown
        as they are.
        """
        return next(
            (
                cell
                for cell in self.item.cells
                if cell.series == self.item.spec.get("share_of")
            ),
            None,
        )

    @property
    def searched(self) -> bool:
        """Whether its rows are settings among which a search chooses."""
        return any(row.cell.searched for row in self.rows)

    @property
    def columns(self) -> Sequence[str]:
        """What is shown beside the value."""
        return self.item.spec.get("columns", ())

    @property
    def measured(self) -> str:
        """The heading of what was measured."""
        shown = (
            "time, ms a task"
            if self.of_time
            else "accuracy, %" + " on validation tasks" * self.searched
        )
        if self.shared is not None:
            shown = f"accuracy, % of that of {self.shared.title}"
        return f"{shown} (95 % interval)"

    def fields(self, row: Row) -> dict[str, Shown]:
        """A row for people, by the column's heading."""
        cell, result = row.cell, row.result
        tested = values.accuracy(result.accuracy) if row.chosen else values.words("")
        notes = [] if row.spread is None else [f"± {row.spread:g}"]
        if row.published is not None and not row.comparable:
            notes.append("not comparable")
        return {
            "data": values.words(cell.dataset),
            "task": values.words(cell.task),
            "method": values.words(
                f"{cell.title}, {cell.variant}" if cell.variant else cell.title
            ),
            self.measured: (values.milliseconds if self.of_time else values.accuracy)(
                row.value
            ),
            **(
                {"accuracy, % at the meta-test, of the chosen": tested}
                if self.searched
                else {}
            ),
            "ε claimed": values.epsilon(result.claimed),
            "ε that holds": values.epsilon(result.holds),
            "δ": values.number(result.delta, "g"),
            "unit": values.words(result.unit or ""),
            f"published, {'ms' if self.of_time else '%'}": values.number(
                row.published, "g", note=", ".join(notes)
            ),
        } | {
            _COLUMNS[name][0]: values.number(row.mean(name), ",.0f")
            for name in self.columns
        }


def _of_time(item: Item) -> bool:
    return bool(item.spec.get("value", "accuracy") == "milliseconds")


def read(
    item: Item, results: str | Path, published: str | Path, audits: Audits | None = None
) -> Table:
    """The table that a description asks for, from its runs' files and the published
    numbers.

    Without the audits of its private configurations, for which a table by itself does
    not wait, a note says where they are.

    Raises:
        BenchError: a file is missing or damaged, or a run for a table of time does not
            tell its own.
    """
    printed = {
        (number.dataset, number.task, number.method, number.variant): number
        for number in reversed(read_published(published, item.paper, item.name))
    }
    cells = [(cell, read_cell(results, cell.folders)) for cell in item.cells]
    if audits is not None:
        cells = [(cell, audits.marked(cell.group, result)) for cell, result in cells]
    whole = {
        (cell.dataset, cell.task): result
        for cell, result in cells
        if cell.series == item.spec.get("share_of")
    }
    rows = []
    for cell, result in cells:
        known = printed.get(
            (cell.published_dataset, cell.task, cell.method, cell.variant)
        )
        # Nobody has the machine of the paper.
        comparable = known is not None and not cell.mismatch and not _of_time(item)
        value = _value(item, cell, result, whole)
        rows.append(
            Row(
                cell=cell,
                result=result,
                value=value,
                published=None if known is None else known.value,
                spread=None if known is None else known.spread,
                comparable=comparable,
            )
        )
    chosen = [dataclasses.replace(row, chosen=_is_chosen(row, rows)) for row in rows]
    return Table(item=item, rows=chosen, audited=audits is not None)


def _value(
    item: Item,
    cell: Cell,
    result: CellResult,
    whole: Mapping[tuple[str, str], CellResult],
) -> Interval:
    """What a table shows of a cell; `whole` are the results that others are shown as
    shares of, seed by seed.
    """
    of_time = _of_time(item)
    value = (
        result.milliseconds
        if of_time
        else result.validated
        if cell.searched
        else result.accuracy
    )
    if value is None and cell.searched:
        raise BenchError(
            f"{item.paper} {item.name} chooses by validation, which a run of"
            f" {cell.group} does not have: delete that folder and run the workflow"
            " again"
        )
    if value is None:
        raise BenchError(
            f"{item.paper} {item.name} shows times, but {cell.group} has none: leave"
            " out private runs with secret cohorts, or delete the folder if an older"
            " version made it, and run the workflow again"
        )
    if not whole:
        return value
    pairs = zip(
        result.runs, whole[cell.dataset, cell.task].runs, strict=False
    )  # as far as both go
    shares = [
        100 * float(run.metrics["accuracy"]) / float(other.metrics["accuracy"])
        for run, other in pairs
    ]
    return mean_interval(shares, over="seeds")


def _is_chosen(row: Row, rows: Sequence[Row]) -> bool:
    """Whether it is the best of its series and data in a search; the first of those
    that are equal.
    """
    place = (row.cell.series, row.cell.dataset, row.cell.task)
    tries = [
        other
        for other in rows
        if (other.cell.series, other.cell.dataset, other.cell.task) == place
    ]
    return row.cell.searched > 0 and max(tries, key=lambda each: each.value.mean) is row


def tidy(table: Table) -> pd.DataFrame:
    """One row for each cell.

    `value` and its 95 % interval are accuracies in percent (or milliseconds a client);
    `epsilon_claimed` and `epsilon_holds` the upper ends of what the two profiles give,
    empty where no privacy is claimed; `unit` what is protected; `published` the paper's
    number, and `comparable` whether ours was measured on its data at its scale.
    """
    return pd.DataFrame(
        {
            **{
                name: getattr(row.cell, name)
                for name in ("dataset", "task", "method", "variant")
            },
            "value": row.value.mean,
            "ci_low": row.value.low,
            "ci_high": row.value.high,
            "seeds": row.result.seeds,
            "epsilon_claimed": row.result.claimed.epsilon_high,
            "epsilon_holds": row.result.holds.epsilon_high,
            "delta": math.nan if row.result.delta is None else row.result.delta,
            "unit": row.result.unit,
            "published": row.published,
            "comparable": row.comparable,
            **({"chosen": row.chosen} if table.searched else {}),
        }
        | {name: row.mean(name) for name in table.columns}
        for row in table.rows
    )


def to_markdown(table: Table, command: str) -> str:
    """The table for people: measured on what, how sure, how private, and how to make it
    again.
    """
    rows = [table.fields(row) for row in table.rows]
    measured = [
        f"**{row[table.measured].text}** ({row[table.measured].note})" for row in rows
    ]
    texts = [
        [bold if name == table.measured else shown.line for name, shown in row.items()]
        for row, bold in zip(rows, measured, strict=True)
    ]
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
        *(
            f"- {values.escaped(row.place)}: `{_folders(row.cell)}`"
            for row in table.rows
        ),
    ]
    return "\n".join(lines) + "\n"


def notes(table: Table) -> list[str]:
    """What a reader of the table must be told, a sentence each."""
    said = [
        "Time is that of a training round, divided by its number of clients, without"
        " validation. It was measured on the machine and with the threads that"
        " training.json names; the papers used other machines."
    ]
    if not table.of_time:
        counted, results = (
            table.rows[0].result.counted,
            [row.result for row in table.rows],
        )
        seeds = values.plural(values.span(result.seeds for result in results), "seed")
        tasks = values.plural(
            values.span(result.tasks // result.seeds for result in results), counted
        )
        over = {result.accuracy.over for result in results}
        kinds = [text for kind, text in _INTERVALS.items() if kind in over]
        said = [
            (
                f"Accuracy is the mean of the per-seed means over the test {counted}s"
                f" ({seeds}, {tasks} each)."
            ),
            f"The interval is {'. In rows of one seed it is '.join(kinds)}.",
        ]
    if table.shared is not None:
        said.insert(
            0,
            f"Values are shares of the accuracy of {table.shared.title}, seed by seed;"
            " so is the interval.",
        )
    if table.searched:
        count = max(row.cell.searched for row in table.rows)
        said[0] = (
            f"Each method was searched with at most {values.plural(count, 'run')}. The"
            " settings with the best accuracy on the validation tasks are chosen, and"
            f" only their meta-test is read. {said[0]}"
        )
    said.append(
        "A row without a claim of privacy has – for ε, and nothing in the CSV. Of a"
        " range the CSV has the upper end."
    )
    if not table.audited and any(row.result.unit is not None for row in table.rows):
        said.append(
            "An ε that holds is proved unless another word stands beside it. The table"
            " of privacy and the page say whether an audit exceeds it."
        )
    said += [
        f"{profile}, {row.cell.title}: {entry.explanation.rstrip('.')}."
        for row in table.rows
        for profile, entry in (
            ("ε claimed", row.result.claimed),
            ("ε that holds", row.result.holds),
        )
        if entry.explanation
    ]
    said += attributed_notices([(row.place, row.result) for row in table.rows])
    said += [
        f"Not comparable with the published value: {row.cell.mismatch}."
        for row in table.rows
        if row.cell.mismatch and row.published is not None
    ]
    return list(dict.fromkeys(said))


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
"""What an interval is over, as a note says it."""


def _folders(cell: Cell) -> str:
    """The runs' common folder, with the seeds in braces as a shell writes them."""
    seeds = [Path(folder).name.removeprefix("seed") for folder in cell.folders]
    names = f"seed{seeds[0]}" if len(seeds) == 1 else f"seed{{{','.join(seeds)}}}"
    return f"results/runs/{cell.group}/{names}"
