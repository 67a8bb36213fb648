"""Reads the folders of finished runs into one value for each cell of a table or
figure.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import Interval, mean_interval, seeds_interval
from dpfedbench.files import check_file, read_group, read_json, reading
from dpfedbench.results.format import refuse_newer
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
    """The runs of one cell, one for each seed: accuracy in percent, and what their
    accounts say.

    `tasks` is how many test tasks, or records, the seeds have in all, and `counted`
    which of the two it is. `milliseconds` is the time of training for each client or
    record, over seeds; None where a run says nothing of it. `validated` is the accuracy
    on validation tasks, over seeds, of the checkpoints that are tested; None without
    any. `delta` and `unit` are None where no privacy is claimed.
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

    @property
    def accounts_by_unit(self) -> list[tuple[Account, ...]]:
        """For each unit that is protected, or for none, its accounts, one for each
        seed.
        """
        return list(
            zip(*((run.account, *run.account.also) for run in self.runs), strict=True)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A number that a paper prints: `x` places it on a figure's axis, where it has
    one; `spread` is its ±, where one is printed.
    """

    dataset: str
    task: str
    method: str
    variant: str
    x: float | None
    value: float
    source: str
    spread: float | None = None


def read_cell(
    results: str | Path, folders: Sequence[str], metrics_file: str = "metrics.json"
) -> CellResult:
    """Read the runs of a cell, from their folders below results/runs, and the meta-test
    in this file of each.

    Raises:
        BenchError: a file of a run is missing, damaged or a newer version's, or the
            seeds disagree on δ or unit.
    """
    runs = tuple(
        _read_run(Path(results, "runs", folder), metrics_file) for folder in folders
    )
    where, accounts, training = (
        runs[0].folder.parent,
        [run.account for run in runs],
        [run.training for run in runs],
    )
    try:
        accuracy, tasks = _accuracy([run.metrics for run in runs])
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(
            f"a result of {where} lacks {error}: delete that folder and run the"
            " workflow again"
        ) from error
    protected = {
        (account.delta, account.unit) for account in accounts if account.profiles
    }
    if len(protected) > 1:
        raise BenchError(
            f"the seeds of {where} differ in delta or unit: delete that folder and run"
            " again"
        )
    delta, unit = next(iter(protected), (None, None))
    return CellResult(
        runs=runs,
        accuracy=accuracy,
        milliseconds=_over_seeds(
            [
                run.get("milliseconds_per_client", run.get("milliseconds_per_record"))
                for run in training
            ]
        ),
        validated=_over_seeds([_validated(run) for run in training]),
        tasks=tasks,
        counted="record" if "records" in runs[0].metrics else "task",
        claimed=worst_epsilon(accounts, "as_claimed"),
        holds=worst_epsilon(accounts, "holds"),
        delta=delta,
        unit=unit,
        notices=tuple(
            dict.fromkeys(text for run in training for text in run.get("notices", ()))
        ),
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
    return RunFiles(
        folder=folder,
        metrics=read_group(folder / metrics_file),
        account=account,
        training=training,
    )


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
        raise BenchError(
            f"{path} cannot be read ({error}): delete it and run the workflow again"
        ) from error
    return table


def _validated(training: Mapping[str, Any]) -> float | None:
    """The mean validation accuracy in percent of a run's members; None where none is
    known.
    """
    members = [
        100 * float(member["accuracy"]) for member in training.get("members", ())
    ]
    return sum(members) / len(members) if members else None


def _over_seeds(values: Sequence[Any]) -> Interval | None:
    """The interval over seeds; None where a seed has no value."""
    return (
        None
        if None in values
        else mean_interval([float(value) for value in values], over="seeds")
    )


def _accuracy(metrics: Sequence[Mapping[str, Any]]) -> tuple[Interval, int]:
    """The interval over seeds, of a single seed over its own tasks or records; and how
    many of these there are.
    """
    if "records" not in metrics[0]:
        per_task = [
            [float(value) for value in metric["per_task"]] for metric in metrics
        ]
        return seeds_interval(per_task), sum(map(len, per_task))
    count = sum(metric["records"] for metric in metrics)
    if len(metrics) > 1:
        return (
            mean_interval(
                [float(metric["accuracy"]) for metric in metrics], over="seeds"
            ),
            count,
        )
    mean, *ends = (metrics[0][key] for key in ("accuracy", "ci_low", "ci_high"))
    low, high = (math.nan if end is None else float(end) for end in ends)
    return (
        Interval(
            mean=float(mean), low=low, high=high, count=int(count), over="records"
        ),
        count,
    )


def worst_epsilon(accounts: Sequence[Account], profile: str) -> Entry:
    """The entry of the worst seed: seeds differ only where one was stopped earlier than
    another.

    Where no account has an entry, its ε is NaN, its status "none", and its explanation
    why a private run has none.
    """
    entries = [
        account.profiles[profile] for account in accounts if profile in account.profiles
    ]
    if entries:
        return max(entries, key=lambda entry: entry.epsilon_high)
    why = next(
        (
            account.reasons.get(profile, "")
            for account in accounts
            if account.unit is not None
        ),
        "",
    )
    return Entry(
        epsilon_low=math.nan,
        epsilon_high=math.nan,
        delta=math.nan,
        unit="",
        adjacency="",
        observer="",
        status="none",
        explanation=why,
    )


def attributed_notices(named: Sequence[tuple[str, CellResult]]) -> list[str]:
    """The notices of the private cells, as sentences; one that is not of all of them
    names its cells.
    """
    private = [(name, cell) for name, cell in named if cell.notices]
    sentences = []
    for notice in dict.fromkeys(text for _, cell in private for text in cell.notices):
        names = [name for name, cell in private if notice in cell.notices]
        if len(names) == len(private):
            sentences.append(f"{notice[:1].upper()}{notice[1:]}.")
        else:
            sentences.append(f"{', '.join(dict.fromkeys(names))}: {notice}.")
    return sentences


def read_published(path: str | Path, paper: str, item: str) -> list[Published]:
    """Return the published numbers that one table or figure shows beside ours.

    Rows whose `quantity` is not empty are of other quantities (parameters, GPU days,
    epochs) and are left out: docs/fidelity.md compares them.

    Raises:
        BenchError: the file is missing, lacks a column, has a number that cannot be
            read, or two numbers for one thing.
    """
    texts = ("dataset", "task", "method", "variant", "source")
    needed = {"paper", "item", "x", "value", *texts}
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        if missing := needed - set(table):
            raise BenchError(
                f"{path} has no column {sorted(missing)[0]}: its first line must name"
                f" {sorted(needed)}"
            )
        shown = (table["paper"] == paper) & (table["item"] == item)
        if "quantity" in table:
            shown &= table["quantity"] == ""
        rows = table.loc[shown].to_dict("records")
        numbers = [
            Published(
                x=float(row["x"]) if row["x"] else None,
                value=float(row["value"]),
                spread=float(row["spread"]) if row.get("spread") else None,
                **{t: row[t] for t in texts},
            )
            for row in rows
        ]
    except FileNotFoundError as error:
        raise BenchError(
            f"{path} is missing: restore it from the repository"
        ) from error
    except ValueError as error:
        raise BenchError(
            f"a published number of {paper} {item} is not a number ({error})"
        ) from error
    places = [
        dataclasses.replace(number, value=0.0, spread=None, source="")
        for number in numbers
    ]
    for row in (
        row for index, row in enumerate(rows) if places[index] in places[:index]
    ):
        where = [row[name] for name in ("dataset", "task", "method", "variant")] + [
            f"x {row['x']}" if row["x"] else ""
        ]
        raise BenchError(
            f"{path} has two numbers of {paper} {item} for"
            f" {', '.join(filter(None, where))}: keep one of the lines"
        )
    return numbers
