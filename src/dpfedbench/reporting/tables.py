"""Tables: a tidy CSV for programs and Markdown for people."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import Interval
from dpfedbench.reporting.results import (
    CellResult,
    Epsilon,
    attributed_notices,
    published_for,
    read_cell,
    read_published,
)

COLUMNS = [
    "dataset",
    "task",
    "method",
    "variant",
    "value",
    "ci_low",
    "ci_high",
    "seeds",
    "epsilon_claimed",
    "epsilon_holds",
    "delta",
    "unit",
    "published",
    "comparable",
]

HEADINGS = (
    "data",
    "task",
    "method",
    "accuracy, % (95 % interval)",
    "ε claimed",
    "ε that holds",
    "δ",
    "unit",
    "published, %",
)

TIME = "time, ms a task (95 % interval)"
"""In place of the accuracy where a table is of time."""

Row = tuple[Mapping[str, Any], CellResult]


def of_time(description: Mapping[str, Any]) -> bool:
    """Whether a table shows the time of training a client, in place of accuracy."""
    return bool(description["spec"].get("value", "accuracy") == "milliseconds")


def headings(description: Mapping[str, Any]) -> list[str]:
    """`HEADINGS`, for what the table shows."""
    if not of_time(description):
        return list(HEADINGS)
    return [{HEADINGS[3]: TIME, "published, %": "published, ms"}.get(heading, heading) for heading in HEADINGS]


def shown(description: Mapping[str, Any], result: CellResult) -> Interval:
    """The value of a cell.

    Raises:
        BenchError: a run that was trained before times were written down.
    """
    if not of_time(description):
        return result.accuracy
    if result.milliseconds is None:
        raise BenchError(
            f"{description['paper']} {description['name']} shows times, which an older run does not have: "
            "delete its folder and run the workflow again"
        )
    return result.milliseconds


def read_rows(description: Mapping[str, Any], results: str | Path) -> list[Row]:
    """Each cell of a table's description with what its runs say."""
    return [(cell, read_cell(results, cell["folders"])) for cell in description["cells"]]


def tidy(description: Mapping[str, Any], rows: list[Row], published: str | Path) -> pd.DataFrame:
    """One row for each cell, with the columns of `COLUMNS`.

    `value` and its 95 % interval are accuracies in percent (or milliseconds a client);
    `epsilon_claimed` and `epsilon_holds` the upper ends of what the two profiles give, empty where no privacy is
    claimed; `unit` what is protected;
    `published` the paper's number, and `comparable` whether ours was measured on its data at its scale.
    """
    printed = read_published(published, description["paper"], description["name"])
    records = []
    for cell, result in rows:
        number, value = published_for(printed, cell), shown(description, result)
        records.append(
            {
                "dataset": cell["dataset"],
                "task": cell["task"],
                "method": cell["method"],
                "variant": cell["variant"],
                "value": value.mean,
                "ci_low": value.low,
                "ci_high": value.high,
                "seeds": result.seeds,
                "epsilon_claimed": result.claimed.high,
                "epsilon_holds": result.holds.high,
                "delta": math.nan if result.delta is None else result.delta,
                "unit": result.unit,
                "published": None if number is None else number.value,
                # Nobody has the machine of the paper.
                "comparable": number is not None and not cell["mismatch"] and not of_time(description),
            }
        )
    return pd.DataFrame(records, columns=COLUMNS)


def to_csv(table: pd.DataFrame) -> str:
    """CSV text: six significant digits, "inf" for no bound, true and false in lower case."""
    shown = table.assign(comparable=table["comparable"].map({True: "true", False: "false"}))
    return str(shown.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def to_markdown(description: Mapping[str, Any], rows: list[Row], table: pd.DataFrame, command: str) -> str:
    """The table for people: measured on what, how sure, how private, and how to make it again."""
    lines = [
        f"# {description['spec']['title']}",
        "",
        f"| {' | '.join(headings(description))} |",
        f"|{' --- |' * len(HEADINGS)}",
    ]
    lines += ["| " + " | ".join(fields) + " |" for fields in texts(description, rows, table)]
    lines += [
        "",
        *(f"- {note}" for note in notes(description, rows, table)),
        "",
        "Made by",
        "",
        f"    {command}",
        "",
        "from",
        "",
    ]
    lines += [f"- {_place(cell)}: `{_folders(cell)}`" for cell, _ in rows]
    return "\n".join(lines) + "\n"


def texts(description: Mapping[str, Any], rows: list[Row], table: pd.DataFrame) -> list[list[str]]:
    """A list of texts for each row, one under each of `HEADINGS`; what is in parentheses is said of the value."""
    found = []
    for (cell, result), record in zip(rows, table.to_dict("records"), strict=True):
        name = f"{cell['title']}, {cell['variant']}" if cell["variant"] else cell["title"]
        fields = [
            cell["dataset"],
            cell["task"],
            name,
            _time_text(result.milliseconds)
            if of_time(description) and result.milliseconds
            else accuracy_text(result.accuracy),
            epsilon_text(result.claimed),
            epsilon_text(result.holds),
            "–" if result.delta is None else f"{result.delta:g}",
            result.unit or "–",
            _published_text(record),
        ]
        found.append(fields)
    return found


def epsilon_text(epsilon: Epsilon) -> str:
    """An ε for people: both ends where they differ, and its status unless it is proved."""
    if math.isnan(epsilon.high):
        return "–"
    high = "∞" if math.isinf(epsilon.high) else f"{epsilon.high:.3g}"
    low = "∞" if math.isinf(epsilon.low) else f"{epsilon.low:.3g}"
    text = high if low == high else f"{low} to {high}"
    return text if epsilon.status == "proved" else f"{text} ({epsilon.status})"


def accuracy_text(accuracy: Interval) -> str:
    """A percentage and its interval for people."""
    spread = "no interval" if math.isnan(accuracy.low) else f"{_percent(accuracy.low)} to {_percent(accuracy.high)}"
    return f"**{accuracy.mean:.1f}** ({spread})"


def _time_text(time: Interval) -> str:
    spread = "one seed" if math.isnan(time.low) else f"{max(time.low, 0.0):.3g} to {time.high:.3g}"
    return f"**{time.mean:.3g}** ({spread})"


def _percent(value: float) -> str:
    """The t interval knows nothing of 0 and 100 %; a reader does."""
    return f"{min(100.0, max(0.0, value)):.1f}"


def _published_text(record: Mapping[Any, Any]) -> str:
    if pd.isna(record["published"]):
        return "–"
    return f"{record['published']:g}" + ("" if record["comparable"] else " (not comparable)")


def notes(description: Mapping[str, Any], rows: list[Row], table: pd.DataFrame) -> list[str]:
    """What a reader of the table must be told, a sentence each."""
    if of_time(description):
        said = [
            "Time is what a round of training takes over its clients, without validation, on the machine and with the "
            "threads that training.json names; the published times are another machine's."
        ]
    else:
        counts = _counts(rows)
        said = [
            f"Accuracy is the mean over seeds of the mean over each seed's test {rows[0][1].counted}s ({counts}).",
            _interval_note(rows),
        ]
    said += [
        "ε is – here and empty in the CSV where no privacy is claimed; the CSV has the upper end of a range.",
    ]
    for cell, result in rows:
        for profile, epsilon in (("ε claimed", result.claimed), ("ε that holds", result.holds)):
            if epsilon.explanation:
                said.append(f"{profile}, {cell['title']}: {epsilon.explanation.rstrip('.')}.")
    said += attributed_notices([(_place(cell), result) for cell, result in rows])
    for (cell, _), record in zip(rows, table.to_dict("records"), strict=True):
        if cell["mismatch"] and not pd.isna(record["published"]):
            said.append(f"Not comparable with the published value: {cell['mismatch']}.")
    return list(dict.fromkeys(said))


def _counts(rows: list[Row]) -> str:
    return (
        _span({result.seeds for _, result in rows}, "seed")
        + ", "
        + _span({result.tasks // result.seeds for _, result in rows}, rows[0][1].counted)
        + " each"
    )


def _span(values: set[int], what: str) -> str:
    low, high = min(values), max(values)
    count = f"{low}" if low == high else f"{low} to {high}"
    return f"{count} {what}" + ("" if high == 1 else "s")


def _interval_note(rows: list[Row]) -> str:
    over = {result.accuracy.over for _, result in rows}
    means = {
        "seeds": "over seeds (Student's t; each seed draws clients, weights, noise and tasks anew)",
        "tasks": "over the tasks of a single seed (Student's t), which leaves out how seeds differ",
        "records": "over the records of a single seed (Student's t), which leaves out how seeds differ",
    }
    said = [means[key] for key in means if key in over]
    return f"The interval is {'; with one seed it is '.join(said)}."


def _place(cell: Mapping[str, Any]) -> str:
    variant = f" ({cell['variant']})" if cell["variant"] else ""
    return f"{cell['dataset']} {cell['task']}, {cell['title']}{variant}"


def _folders(cell: Mapping[str, Any]) -> str:
    """The runs' common folder, with the seeds in braces as a shell writes them."""
    first = Path(cell["folders"][0])
    seeds = [Path(folder).name.removeprefix("seed") for folder in cell["folders"]]
    names = f"seed{seeds[0]}" if len(seeds) == 1 else f"seed{{{','.join(seeds)}}}"
    return f"results/runs/{first.parent}/{names}"
