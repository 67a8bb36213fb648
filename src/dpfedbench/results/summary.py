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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import Interval, mean_interval, seeds_interval
from dpfedbench.results.columns import CELLS, PRIVACY, UNIT_PREFIXES, names
from dpfedbench.results.runs_table import SEPARATOR, collect_cells, collect_runs

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
_TEXTS = {column.name for column in [*CELLS, *PRIVACY] if column.type == "text"}


def read_rows(
    results: str | Path, cells: Iterable[Mapping[str, Any]], *, by_unit: bool = False
) -> pd.DataFrame:
    """Read the runs of some cells and summarise them.

    Args:
        results: the results folder.
        cells: as `items.Item.cells`.
        by_unit: as of `summarize`.

    Raises:
        BenchError: a file of a run is missing or damaged, or seeds disagree.
    """
    cells = list(cells)
    audited_runs = {
        cell["run"]: cell["audited_run"] for cell in cells if cell.get("audited_run")
    }
    run_names = [cell["run"] for cell in cells]
    runs = collect_runs(results, run_names, audited_runs=audited_runs)
    return summarize(collect_cells(results, cells, runs), runs, by_unit=by_unit)


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
    by_run = runs.set_index("run")
    rows = []
    for _, seeds in cells.groupby(["paper", "item", "cell"], sort=False):
        of_runs = by_run.loc[seeds["run"]]
        row = _shared_columns(seeds) | _training_columns(of_runs)
        row |= _accuracy_columns(seeds)
        for prefix in UNIT_PREFIXES if by_unit else UNIT_PREFIXES[:1]:
            unit = _unit_columns(of_runs, prefix)
            if unit["unit"] or not prefix:
                rows.append(row | unit)
    return pd.DataFrame(rows)


def each_row(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows of a frame, with its columns as attributes."""
    yield from frame.itertuples()


def row_interval(row: Any, name: str = "accuracy") -> Interval:
    """Return a value of a row with its interval."""
    value, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    over = row.interval_over if name == "accuracy" else "seeds"
    return Interval(mean=value, low=low, high=high, count=row.seeds, over=over)


def _shared_columns(seeds: pd.DataFrame) -> dict[str, Any]:
    shared = {
        str(name): _plain(str(name), value)
        for name, value in seeds.iloc[0].items()
        if name not in _OF_SEED
    }
    return shared | {
        "x": float(seeds["x"].iloc[0]),
        "runs": tuple(seeds["run"]),
        "seeds": len(seeds),
        "folder": str(Path(seeds["run"].iloc[0]).parent),
    }


def _training_columns(runs: pd.DataFrame) -> dict[str, Any]:
    times = runs["milliseconds_per_client"].fillna(runs["milliseconds_per_record"])
    notices = SEPARATOR.join(text for text in runs["notices"].fillna("") if text)
    return {
        **_interval_columns("milliseconds", _over_seeds(times)),
        **_interval_columns(
            "validation_accuracy", _over_seeds(runs["validation_accuracy"])
        ),
        "parameters": runs["parameters"].astype(float).mean(skipna=False),
        "seconds": runs["seconds"].astype(float).mean(skipna=False),
        "rounds": runs["rounds_run"].astype(float).mean(),
        "cohort": float(
            runs.get("participation.cohort", _MISSING).astype(float).iloc[0]
        ),
        "notices": tuple(dict.fromkeys(notices.split(SEPARATOR))) if notices else (),
    }


_MISSING = pd.Series([math.nan])


def _over_seeds(values: pd.Series) -> Interval:
    if values.isna().any():
        return Interval(
            mean=math.nan, low=math.nan, high=math.nan, count=0, over="seeds"
        )
    return mean_interval([float(value) for value in values], over="seeds")


def _interval_columns(name: str, interval: Interval) -> dict[str, float]:
    return {
        name: interval.mean,
        f"{name}_low": interval.low,
        f"{name}_high": interval.high,
    }


def _accuracy_columns(seeds: pd.DataFrame) -> dict[str, Any]:
    """Return accuracy and interval, of a single seed over its own tasks or records."""
    first = seeds.iloc[0]
    accuracies = tuple(seeds["accuracy"].astype(float))
    if first["test_unit"] == "task":
        of_tasks = [list(map(float, of_seed)) for of_seed in seeds["task_accuracies"]]
        interval = seeds_interval(of_tasks)
    elif len(seeds) > 1:
        interval = mean_interval(list(accuracies), over="seeds")
    else:
        ends = first[["accuracy_low", "accuracy_high"]].astype(float)
        interval = Interval(
            mean=accuracies[0],
            low=ends.iloc[0],
            high=ends.iloc[1],
            count=int(first["test_count"]),
            over="records",
        )
    return {
        **_interval_columns("accuracy", interval),
        "interval_over": interval.over,
        "test_count": int(seeds["test_count"].sum()),
        "accuracies": accuracies,
    }


def _unit_columns(runs: pd.DataFrame, prefix: str) -> dict[str, Any]:
    """Return the privacy columns of one unit, of the worst seed for each ε."""
    named = {f"{prefix}{name}": name for name in names(PRIVACY)}
    account = runs[list(named)].rename(columns=named)
    protected = account[account["unit"].notna()]
    if len(protected.drop_duplicates(["unit", "delta"])) > 1:
        raise BenchError(
            f"the seeds of {Path(str(runs.index[0])).parent} differ in delta or unit:"
            " delete that folder and run again"
        )
    first = account.iloc[0]
    row = {name: _plain(name, first[name]) for name in named.values()}
    if not row["unit"]:
        row["delta"] = math.nan
    row["accounted_multiplier"] = account["accounted_multiplier"].astype(float).min()
    for largest, further in _OF_LARGEST.items():
        values = account[largest].astype(float).fillna(-math.inf).to_numpy()
        worst = account.iloc[int(np.argmax(values))]
        row |= {name: _plain(name, worst[name]) for name in [largest, *further]}
    for name in ("claimed", "proven"):
        row[f"{name}_status"] = row[f"{name}_status"] or "none"
        row[f"{name}_excess"] = ""
    return row


def _plain(name: str, value: Any) -> Any:
    """Return a value of a frame; a missing text is empty, a missing number NaN."""
    if isinstance(value, list | tuple | dict | np.ndarray) or not pd.isna(value):
        return value
    return "" if name in _TEXTS else math.nan
