"""Reads the folders of finished runs into one value for each cell of a table or figure."""

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import Interval, mean_interval, seeds_interval
from dpfedbench.files import check_file, read_group, read_json, reading
from dpfedbench.results_format import refuse_newer
from dpsum.accounting.account import Account
from dpsum.accounting.profiles import Entry


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFiles:
    """What one finished run wrote down."""

    folder: Path
    metrics: Mapping[str, Any]
    account: Account
    training: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """The runs of one cell, one for each seed: accuracy in percent, and what their accounts say.

    `tasks` is how many test tasks, or records, the seeds have in all, and `counted` which of the two it is.
    `milliseconds` is the time of training for each client or record, over seeds; None where a run says nothing of it.
    `validated` is the accuracy on validation tasks, over seeds, of the checkpoints that are tested; None without any.
    `delta` and `unit` are None where no privacy is claimed.
    """

    runs: tuple[RunFiles, ...]
    accuracy: Interval
    milliseconds: Interval | None
    validated: Interval | None
    tasks: int
    counted: str
    claimed: Entry
    holds: Entry
    delta: float | None
    unit: str | None
    notices: tuple[str, ...]

    @property
    def seeds(self) -> int:
        """How many there are."""
        return len(self.runs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A number that a paper prints: `x` places it on a figure's axis, where it has one."""

    dataset: str
    task: str
    method: str
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
    runs = tuple(_read_run(Path(results, "runs", folder), metrics_file) for folder in folders)
    metrics, where = [run.metrics for run in runs], runs[0].folder.parent
    try:
        notices = dict.fromkeys(text for run in runs for text in run.training.get("notices", ()))
        by_record = "records" in metrics[0]
        per_task = [[] if by_record else [float(value) for value in metric["per_task"]] for metric in metrics]
        accuracy = _over_records(metrics) if by_record else seeds_interval(per_task)
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"a result of {where} lacks {error}: delete that folder and run the workflow again") from error
    accounts = [run.account for run in runs]
    given = {(account.delta, account.unit) for account in accounts if account.profiles}
    if len(given) > 1:
        raise BenchError(f"the seeds of {where} differ in delta or unit: delete that folder and run again")
    delta, unit = next(iter(given), (None, None))
    return CellResult(
        runs=runs,
        accuracy=accuracy,
        milliseconds=_milliseconds([run.training for run in runs]),
        validated=_validated([run.training for run in runs]),
        tasks=sum(metric["records"] for metric in metrics) if by_record else sum(len(tasks) for tasks in per_task),
        counted="record" if by_record else "task",
        claimed=worst_epsilon(accounts, "as_claimed"),
        holds=worst_epsilon(accounts, "holds"),
        delta=delta,
        unit=unit,
        notices=tuple(notices),
    )


def read_account(path: Path | str) -> Account:
    """A run's privacy.json.

    Raises:
        BenchError: the file is missing or damaged.
    """
    return Account.from_json(read_json(path), str(path))


def _read_run(folder: Path, metrics_file: str) -> RunFiles:
    training = read_group(folder / "training.json")
    refuse_newer(training, str(folder))
    account = read_account(folder / "privacy.json")
    return RunFiles(folder=folder, metrics=read_group(folder / metrics_file), account=account, training=training)


def read_history(path: Path) -> pd.DataFrame:
    """A run's history.csv, one row for each round.

    Raises:
        BenchError: it is missing, or is no CSV with a column `round`.
    """
    try:
        with reading(path):
            check_file(path)
            table = pd.read_csv(path)
        table["round"]
    except (ValueError, KeyError) as error:
        raise BenchError(f"{path} cannot be read ({error}): delete it and run the workflow again") from error
    return table


def _milliseconds(training: Sequence[Mapping[str, Any]]) -> Interval | None:
    """The time of training a unit; of a single seed without an interval."""
    return _of_seeds([run.get("milliseconds_per_client", run.get("milliseconds_per_record")) for run in training])


def _validated(training: Sequence[Mapping[str, Any]]) -> Interval | None:
    """The mean validation accuracy in percent of a run's members; of a single seed without an interval."""
    members = [[100 * float(member["accuracy"]) for member in run.get("members", ())] for run in training]
    return _of_seeds([sum(found) / len(found) if found else None for found in members])


def _of_seeds(found: Sequence[Any]) -> Interval | None:
    if any(value is None for value in found):
        return None
    return mean_interval([float(value) for value in found], over="seeds")


def _over_records(metrics: Sequence[Mapping[str, Any]]) -> Interval:
    """The interval over seeds; of a single seed that of its own records."""
    if len(metrics) > 1:
        return mean_interval([float(metric["accuracy"]) for metric in metrics], over="seeds")
    only = metrics[0]
    low, high = (math.nan if only[key] is None else float(only[key]) for key in ("ci_low", "ci_high"))
    return Interval(mean=float(only["accuracy"]), low=low, high=high, count=int(only["records"]), over="records")


def worst_epsilon(accounts: Sequence[Account], profile: str) -> Entry:
    """The entry of the worst seed: seeds differ only where one was stopped earlier than another.

    Where no account has an entry, its ε is NaN, its status "none", and its explanation why a private run has none.
    """
    found = [account.profiles[profile] for account in accounts if profile in account.profiles]
    if found:
        return max(found, key=lambda entry: entry.epsilon_high)
    why = next((account.reasons.get(profile, "") for account in accounts if account.unit is not None), "")
    return Entry(
        epsilon_low=math.nan, epsilon_high=math.nan, delta=math.nan, unit="", adjacency="", observer="", status="none",
        explanation=why,
    )  # fmt: skip


def attributed_notices(named: Sequence[tuple[str, CellResult]]) -> list[str]:
    """The notices of the private cells, as sentences; one that is not of all of them names its cells."""
    private = [(name, cell) for name, cell in named if cell.notices]
    said = []
    for notice in dict.fromkeys(text for _, cell in private for text in cell.notices):
        concerned = dict.fromkeys(name for name, cell in private if notice in cell.notices)
        whose = "" if all(notice in cell.notices for _, cell in private) else f"{', '.join(concerned)}: "
        text = notice if whose else notice[:1].upper() + notice[1:]
        said.append(f"{whose}{text}.")
    return said


def read_published(path: str | Path, paper: str, item: str) -> list[Published]:
    """The published numbers of one table or figure.

    Raises:
        BenchError: the file is missing, lacks a column, has a number that cannot be read, or two numbers for one thing.
    """
    texts = ("dataset", "task", "method", "variant", "source")
    needed = {"paper", "item", "x", "value", *texts}
    try:
        with open(path, newline="", encoding="utf-8") as handle:
            reader = csv.DictReader(handle)
            if missing := needed - set(reader.fieldnames or ()):
                raise BenchError(
                    f"{path} has no column {sorted(missing)[0]}: its first line must name {sorted(needed)}"
                )
            found: dict[tuple[Any, ...], Published] = {}
            for row in reader:
                if (row["paper"], row["item"]) != (paper, item):
                    continue
                x = float(row["x"]) if row["x"] else None
                key = *(row[name] for name in ("dataset", "task", "method", "variant")), x
                if key in found:
                    where = ", ".join(filter(None, [*map(str, key[:-1]), row["x"] and f"x {row['x']}"]))
                    raise BenchError(f"{path} has two numbers of {paper} {item} for {where}: keep one of the lines")
                found[key] = Published(x=x, value=float(row["value"]), **{name: row[name] for name in texts})
            return list(found.values())
    except FileNotFoundError as error:
        raise BenchError(f"{path} is missing: restore it from the repository") from error
    except ValueError as error:
        raise BenchError(f"a published number of {paper} {item} is not a number ({error})") from error
