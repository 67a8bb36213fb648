"""What finished runs say: read from their folders, one value for each cell of a table or figure."""

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import Interval, mean_interval, seeds_interval
from dpfedbench.files import read_json
from dpfedbench.results_format import refuse_newer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epsilon:
    """One profile's answer: ε from `low` to `high`, and whether it is proved; NaN where there is none."""

    low: float
    high: float
    status: str
    explanation: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """The runs of one cell: accuracy in percent, and what their accounts say.

    `tasks` is how many test tasks, or records, the seeds have in all, and `counted` which of the two it is.
    `milliseconds` is the time of training for each client or record, over seeds; None where a run says nothing of it.
    `delta` and `unit` are None where no privacy is claimed.
    """

    accuracy: Interval
    milliseconds: Interval | None
    seeds: int
    tasks: int
    counted: str
    claimed: Epsilon
    holds: Epsilon
    delta: float | None
    unit: str | None
    notices: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A number that a paper prints: `x` places it on a figure's axis, where it has one."""

    variant: str
    x: float | None
    value: float
    source: str


def read_cell(results: str | Path, folders: Sequence[str], metrics_file: str = "metrics.json") -> CellResult:
    """Read the runs of a cell.

    Args:
        results: the results folder.
        folders: the runs' folders below results/runs, one for each seed.
        metrics_file: of the meta-test, in a run's folder.

    Raises:
        BenchError: a file of a run is missing, damaged or a newer version's, or the seeds disagree on δ or unit.
    """
    runs = [Path(results, "runs", folder) for folder in folders]
    metrics = [read_json(run / metrics_file) for run in runs]
    privacy = [read_json(run / "privacy.json") for run in runs]
    training = [read_json(run / "training.json") for run in runs]
    for run, trained in zip(runs, training, strict=True):
        refuse_newer(trained, str(run))
    try:
        given = {(account.get("delta"), account.get("unit")) for account in privacy if account["profiles"]}
        notices = dict.fromkeys(text for account in training for text in account.get("notices", ()))
        by_record = "records" in metrics[0]
        per_task = [[] if by_record else [float(value) for value in metric["per_task"]] for metric in metrics]
        accuracy = _over_records(metrics) if by_record else seeds_interval(per_task)
        claimed, holds = (worst_epsilon(privacy, profile) for profile in ("as_claimed", "holds"))
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(
            f"a result of {runs[0].parent} lacks {error}: delete that folder and run the workflow again"
        ) from error
    if len(given) > 1:
        raise BenchError(f"the seeds of {runs[0].parent} differ in delta or unit: delete that folder and run again")
    delta, unit = next(iter(given), (None, None))
    return CellResult(
        accuracy=accuracy,
        milliseconds=_milliseconds(training),
        seeds=len(runs),
        tasks=sum(metric["records"] for metric in metrics) if by_record else sum(len(tasks) for tasks in per_task),
        counted="record" if by_record else "task",
        claimed=claimed,
        holds=holds,
        delta=delta,
        unit=unit,
        notices=tuple(notices),
    )


def _milliseconds(training: Sequence[Mapping[str, Any]]) -> Interval | None:
    """The time of training a unit; of a single seed without an interval."""
    found = [run.get("milliseconds_per_client", run.get("milliseconds_per_record")) for run in training]
    if any(value is None for value in found):
        return None
    if len(found) > 1:
        return mean_interval([float(value) for value in found if value is not None], over="seeds")
    return Interval(mean=float(found[0] or 0), low=math.nan, high=math.nan, count=1, over="seeds")


def _over_records(metrics: Sequence[Mapping[str, Any]]) -> Interval:
    """The interval over seeds; of a single seed that of its own records."""
    if len(metrics) > 1:
        return mean_interval([float(metric["accuracy"]) for metric in metrics], over="seeds")
    only = metrics[0]
    low, high = (math.nan if only[key] is None else float(only[key]) for key in ("ci_low", "ci_high"))
    return Interval(mean=float(only["accuracy"]), low=low, high=high, count=int(only["records"]), over="records")


def worst_epsilon(privacy: Sequence[Mapping[str, Any]], profile: str) -> Epsilon:
    """The worst of the seeds: they differ only where one was stopped earlier than another."""
    found = [account["profiles"][profile] for account in privacy if profile in account["profiles"]]
    if not found:
        return Epsilon(low=math.nan, high=math.nan, status="none", explanation="")
    worst = max(found, key=lambda account: number(account["epsilon_high"]))
    return Epsilon(
        low=number(worst["epsilon_low"]),
        high=number(worst["epsilon_high"]),
        status=worst["status"],
        explanation=worst.get("explanation", ""),
    )


def number(value: Any) -> float:
    """JSON has no infinity: it is written as text. None stands for a bound that nobody can give."""
    return math.inf if value is None else float(value)


def attributed_notices(named: Sequence[tuple[str, CellResult]]) -> list[str]:
    """What a reader must be told, as sentences; where it is not true of all private cells, of which it is."""
    private = [(name, cell) for name, cell in named if cell.notices]
    said = []
    for notice in dict.fromkeys(text for _, cell in private for text in cell.notices):
        concerned = dict.fromkeys(name for name, cell in private if notice in cell.notices)
        whose = "" if all(notice in cell.notices for _, cell in private) else f"{', '.join(concerned)}: "
        text = notice if whose else notice[:1].upper() + notice[1:]
        said.append(f"{whose}{text}.")
    return said


def read_published(path: str | Path, paper: str, item: str) -> list[dict[str, str]]:
    """The published numbers of one table or figure, as rows of text.

    Raises:
        BenchError: the file is missing or lacks a column.
    """
    needed = {"paper", "item", "dataset", "task", "method", "variant", "x", "value", "source"}
    try:
        with open(path, newline="", encoding="utf-8") as handle:
            reader = csv.DictReader(handle)
            missing = needed - set(reader.fieldnames or ())
            if missing:
                raise BenchError(
                    f"{path} has no column {sorted(missing)[0]}: its first line must name {sorted(needed)}"
                )
            return [row for row in reader if (row["paper"], row["item"]) == (paper, item)]
    except FileNotFoundError as error:
        raise BenchError(f"{path} is missing: restore it from the repository") from error


def published_for(rows: Sequence[Mapping[str, str]], cell: Mapping[str, Any]) -> Published | None:
    """The published number of a cell, found by the data set of the paper, task, method and variant."""
    for row in rows:
        wanted = (cell["published_dataset"], cell["task"], cell["method"], cell["variant"])
        if (row["dataset"], row["task"], row["method"], row["variant"]) == wanted:
            return parse_published(row)
    return None


def parse_published(row: Mapping[str, str]) -> Published:
    """A row of the published numbers, as numbers."""
    try:
        x = float(row["x"]) if row["x"] else None
        return Published(variant=row["variant"], x=x, value=float(row["value"]), source=row["source"])
    except ValueError as error:
        raise BenchError(f"a published number of {row['paper']} {row['item']} is not a number ({error})") from error
