"""Rows of tables and figures: the runs of a cell summarised over their seeds.

`summarize` is the one query that tables, figures and the page start from. A row has the
columns of `columns.CELLS` that all seeds of a cell share, and these:

- `runs`, `seeds`: the runs and how many there are; `folder` is the one that they share.
- `accuracy`, `accuracy_low`, `accuracy_high`: mean and 95 % interval, in percent;
  `interval_over` is what was taken as independent: seeds, tasks or records.
- `test_count`: tested tasks or records of all seeds.
- `milliseconds`, `validation_accuracy`, each with `_low` and `_high`: intervals over
  seeds; NaN where a seed has no value.
- `parameters`, `seconds`: means over seeds; NaN where a seed has no value. `rounds`:
  the mean number of rounds that were run. `cohort`: configured clients or records a
  round.
- `unit`, `delta`, `adjacency`, `observer` and each ε with status and explanation: those
  of the seed with the largest ε, since seeds differ where one stopped earlier.
- `claimed_excess`, `proven_excess`: what an audit says against an ε (`audits.mark`).
- `notices`: remarks of the runs.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import mean_interval, seeds_interval
from dpfedbench.results.columns import DICTIONARY, UNIT_PREFIXES, names, run_columns
from dpfedbench.results.runs_table import SEPARATOR, collect_cells, collect_runs

Record = dict[str, Any]
"""A row of a frame: values by the names of the columns."""

_OF_SEED = {
    *("seed", "run", "test_count", "task_accuracies"),
    *("accuracy", "accuracy_low", "accuracy_high"),
}
"""Columns of cells that seeds do not share."""
_OF_LARGEST = {
    "epsilon_claimed": ["epsilon_claimed_low", "claimed_status", "claimed_explanation"],
    "epsilon_proven_high": [
        *("adjacency", "observer", "epsilon_proven_low"),
        *("proven_status", "proven_explanation"),
    ],
    "epsilon_image_level": ["image_level_explanation"],
}
"""Each ε, and the columns that are those of the seed with the largest."""
_TEXTS = set(DICTIONARY.loc[DICTIONARY["type"] == "text", "name"])
_COHORT = "participation.cohort"


def read_rows(
    results: str | Path,
    cells: Iterable[Mapping[str, Any]],
    *,
    by_unit: bool = False,
    runs: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Read the runs of some cells and summarise them.

    Args:
        results: the results folder.
        cells: as `items.Item.cells`.
        by_unit: as of `summarize`.
        runs: the frame of these and perhaps other runs; None: it is collected.

    Raises:
        BenchError: a file of a run is missing or damaged, or seeds disagree.
    """
    cells = list(cells)
    if runs is None:
        runs = collect_runs_of(results, cells)
    return summarize(collect_cells(results, cells, runs), runs, by_unit=by_unit)


def collect_runs_of(
    results: str | Path, cells: Iterable[Mapping[str, Any]]
) -> pd.DataFrame:
    """Return the frame of the runs that some cells show.

    Raises:
        BenchError: a file of a run is missing or damaged.
    """
    audited_runs = {cell["run"]: cell.get("audited_run") for cell in cells}
    return collect_runs(
        results,
        audited_runs,
        audited_runs={run: name for run, name in audited_runs.items() if name},
    )


def summarize(
    cells: pd.DataFrame, runs: pd.DataFrame, *, by_unit: bool = False
) -> pd.DataFrame:
    """Return one row for each cell, in the order of the cells.

    Args:
        cells: the frame of cells.
        runs: the frame of their runs.
        by_unit: whether a cell has a row for each unit and observer of its account.

    Raises:
        BenchError: the seeds of a cell differ in δ or unit.
    """
    runs = runs.reindex(columns=[*run_columns(), _COHORT])
    runs_by_name = {record["run"]: record for record in _records(runs)}
    seeds_of_cells: dict[tuple[Any, ...], list[Record]] = {}
    for record in _records(cells):
        key = (record["paper"], record["item"], record["cell"])
        seeds_of_cells.setdefault(key, []).append(record)
    rows = []
    for seeds in seeds_of_cells.values():
        of_runs = [runs_by_name[seed["run"]] for seed in seeds]
        row = _shared_columns(seeds) | _training_columns(of_runs)
        for prefix in UNIT_PREFIXES if by_unit else UNIT_PREFIXES[:1]:
            if of_runs[0][f"{prefix}unit"] or not prefix:
                rows.append(row | _unit_columns(of_runs, prefix))
    return pd.DataFrame(rows)


def _records(frame: pd.DataFrame) -> list[Record]:
    """Return the rows of a frame; a missing text is empty, a missing number NaN."""
    columns: dict[str, pd.Series] = {}
    for name in map(str, frame):
        is_text = name.removeprefix("second_").removeprefix("third_") in _TEXTS
        values = frame[name].astype(object)
        columns[name] = values.where(values.notna(), "" if is_text else math.nan)
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def each_row(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows of a frame, with its columns as attributes."""
    yield from frame.itertuples()


def _shared_columns(seeds: Sequence[Record]) -> Record:
    """Return what the seeds of a cell share, and their accuracy with its interval: of a
    single seed over its own tasks or records.
    """
    first = seeds[0]
    shared = {name: value for name, value in first.items() if name not in _OF_SEED}
    accuracies = [seed["accuracy"] for seed in seeds]
    columns = interval_columns("accuracy", accuracies)
    over = "seeds"
    if first["test_unit"] == "task":
        interval = seeds_interval([seed["task_accuracies"] for seed in seeds])
        columns["accuracy"] = interval.mean
        columns["accuracy_low"] = interval.low
        columns["accuracy_high"] = interval.high
        over = interval.over
    elif len(seeds) == 1:
        columns = {name: first[name] for name in columns}
        over = "records"
    return {
        **shared,
        **columns,
        "interval_over": over,
        "accuracies": tuple(accuracies),
        "test_count": sum(seed["test_count"] for seed in seeds),
        "runs": tuple(seed["run"] for seed in seeds),
        "seeds": len(seeds),
        "folder": str(Path(first["run"]).parent),
    }


def _training_columns(runs: Sequence[Record]) -> Record:
    """Return means over seeds, and the notices of all seeds."""
    values = {name: [run[name] for run in runs] for name in runs[0]}
    times = np.where(
        np.isnan(values["milliseconds_per_client"]),
        values["milliseconds_per_record"],
        values["milliseconds_per_client"],
    )
    notices = SEPARATOR.join(values["notices"]).split(SEPARATOR)
    return {
        **interval_columns("milliseconds", times),
        **interval_columns("validation_accuracy", values["validation_accuracy"]),
        "parameters": np.mean(values["parameters"]),
        "seconds": np.mean(values["seconds"]),
        "rounds": np.mean(values["rounds_run"]),
        "cohort": float(runs[0][_COHORT]),
        "notices": tuple(dict.fromkeys(filter(None, notices))),
    }


def interval_columns(name: str, values: Iterable[float]) -> dict[str, float]:
    """Return the mean over seeds with its interval; NaN where a seed has no value."""
    values = [float(value) for value in values]
    if np.isnan(values).any():
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), math.nan)
    interval = mean_interval(values, over="seeds")
    return {
        name: interval.mean,
        f"{name}_low": interval.low,
        f"{name}_high": interval.high,
    }


def _unit_columns(runs: Sequence[Record], prefix: str) -> Record:
    """Return the privacy columns of one unit, of the worst seed for each ε."""
    accounts = [
        {name: run[f"{prefix}{name}"] for name in names("privacy")} for run in runs
    ]
    protected = [account for account in accounts if account["unit"]]
    if len({(account["unit"], account["delta"]) for account in protected}) > 1:
        raise BenchError(
            f"the seeds of {Path(runs[0]['run']).parent} differ in delta or unit:"
            " delete that folder and run again"
        )
    row = dict(accounts[0])
    if not row["unit"]:
        row["delta"] = math.nan
    multipliers = [account["accounted_multiplier"] for account in accounts]
    row["accounted_multiplier"] = np.fmin.reduce(multipliers)
    for largest, further in _OF_LARGEST.items():
        epsilons = pd.Series([account[largest] for account in accounts])
        worst = accounts[epsilons.fillna(-math.inf).argmax()]
        row |= {name: worst[name] for name in [largest, *further]}
    for name in ("claimed", "proven"):
        row[f"{name}_status"] = row[f"{name}_status"] or "none"
        row[f"{name}_excess"] = ""
    return row
