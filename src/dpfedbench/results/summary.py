"""Rows of tables and figures: the runs of a cell summarised over their seeds.

`summarize` is the one query that tables, figures and the page start from. A row has the
columns of `columns.CELLS` that all seeds of a cell share, and these:

- `runs`, `seeds`: the runs and how many there are; `folder` is the one that they share.
- `accuracy`, `accuracy_low`, `accuracy_high`: mean and 95 % interval, in percent;
  `interval_over` is what was taken as independent: seeds, tasks or records.
- `test_count`: tested tasks or records of all seeds.
- `milliseconds`, `validation_accuracy`, each with `_low` and `_high`: intervals over
  seeds; NaN where a seed has no value.
- `parameters`, `seconds`: means over seeds; NaN where a seed has no value.
- `unit`, `delta`, `adjacency`, `observer` and each ε with status and explanation: those
  of the seed with the largest ε, since seeds differ where one stopped earlier.
- `claimed_excess`, `proven_excess`: what an audit says against an ε (`audits.mark`).
- `notices`: remarks of the runs.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import Interval, mean_interval, seeds_interval
from dpfedbench.results.columns import CELLS, PRIVACY, UNIT_PREFIXES
from dpfedbench.results.runs_table import SEPARATOR, collect_cells, collect_runs

_OF_SEED = (
    "seed",
    "run",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "test_count",
    "task_accuracies",
)
_CLAIMED = (
    "epsilon_claimed_low",
    "epsilon_claimed",
    "claimed_status",
    "claimed_explanation",
)
_PROVEN = (
    "adjacency",
    "observer",
    "epsilon_proven_low",
    "epsilon_proven_high",
    "proven_status",
    "proven_explanation",
)
_IMAGE_LEVEL = ("epsilon_image_level", "image_level_explanation")
_AUDIT = (
    "epsilon_audited",
    "audit_confidence",
    "audit_method",
    "audit_reason",
    "audit_chance",
    "epsilon_ideal_audit",
    "epsilon_proven_at_audit",
    "audit_saw_another_mechanism",
)
_TEXTS = {column.name for column in (*CELLS, *PRIVACY) if column.type == "text"}


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
    names = [cell["run"] for cell in cells]
    runs = collect_runs(results, names, audited_runs=audited_runs)
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
            unit = _unit(of_runs, prefix)
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


def _interval_columns(name: str, interval: Interval) -> dict[str, float]:
    return {
        name: interval.mean,
        f"{name}_low": interval.low,
        f"{name}_high": interval.high,
    }


def _shared_columns(seeds: pd.DataFrame) -> dict[str, Any]:
    first = seeds.iloc[0]
    names = [column.name for column in CELLS if column.name not in _OF_SEED]
    known = {column.name for column in CELLS}
    further = [str(name) for name in seeds if name not in known]
    row = {name: _plain(name, first[name]) for name in [*names, *further]}
    row["x"] = float(first["x"])
    row["runs"] = tuple(seeds["run"])
    row["seeds"] = len(seeds)
    row["folder"] = str(Path(first["run"]).parent)
    return row


def _training_columns(runs: pd.DataFrame) -> dict[str, Any]:
    times = runs["milliseconds_per_client"].fillna(runs["milliseconds_per_record"])
    notices = [text for text in runs["notices"].fillna("") if text]
    every_notice = [part for text in notices for part in text.split(SEPARATOR)]
    return {
        **_interval_columns("milliseconds", _over_seeds(times)),
        **_interval_columns(
            "validation_accuracy", _over_seeds(runs["validation_accuracy"])
        ),
        "parameters": runs["parameters"].astype(float).mean(skipna=False),
        "seconds": runs["seconds"].astype(float).mean(skipna=False),
        "notices": tuple(dict.fromkeys(every_notice)),
    }


def _over_seeds(values: pd.Series) -> Interval:
    if values.isna().any():
        return Interval(
            mean=math.nan, low=math.nan, high=math.nan, count=0, over="seeds"
        )
    return mean_interval([float(value) for value in values], over="seeds")


def _accuracy_columns(seeds: pd.DataFrame) -> dict[str, Any]:
    """Return accuracy and interval, of a single seed over its own tasks or records."""
    first = seeds.iloc[0]
    if first["test_unit"] == "task":
        tasks = [list(map(float, of_seed)) for of_seed in seeds["task_accuracies"]]
        interval = seeds_interval(tasks)
    elif len(seeds) > 1:
        interval = mean_interval(list(seeds["accuracy"].astype(float)), over="seeds")
    else:
        interval = Interval(
            mean=float(first["accuracy"]),
            low=_float(first["accuracy_low"]),
            high=_float(first["accuracy_high"]),
            count=int(first["test_count"]),
            over="records",
        )
    return {
        **_interval_columns("accuracy", interval),
        "interval_over": interval.over,
        "test_count": int(seeds["test_count"].sum()),
        "accuracies": tuple(seeds["accuracy"].astype(float)),
    }


def _unit(runs: pd.DataFrame, prefix: str) -> dict[str, Any]:
    """Return the privacy columns of one unit, of the worst seed for each ε."""
    named = {f"{prefix}{name}": name for name in _names_of_unit()}
    account = runs[list(named)].rename(columns=named)
    protected = account[account["unit"].notna()]
    if len(protected.drop_duplicates(["unit", "delta"])) > 1:
        raise BenchError(
            f"the seeds of {Path(str(runs.index[0])).parent} differ in delta or unit:"
            " delete that folder and run again"
        )
    first = account.iloc[0]
    row = {
        "unit": _plain("unit", first["unit"]),
        "delta": _float(first["delta"]) if len(protected) else math.nan,
        "accounted_multiplier": account["accounted_multiplier"].astype(float).min(),
    }
    for largest, names in (
        ("epsilon_claimed", _CLAIMED),
        ("epsilon_proven_high", _PROVEN),
        ("epsilon_image_level", _IMAGE_LEVEL),
    ):
        worst = _row_of_largest(account, largest)
        row |= {name: _plain(name, worst[name]) for name in names}
    row |= {name: _plain(name, first[name]) for name in _AUDIT}
    for name in ("claimed", "proven"):
        row[f"{name}_status"] = row[f"{name}_status"] or "none"
        row[f"{name}_excess"] = ""
    return row


def _names_of_unit() -> list[str]:
    return [
        *("unit", "delta", "accounted_multiplier"),
        *(*_CLAIMED, *_PROVEN, *_IMAGE_LEVEL, *_AUDIT),
    ]


def _row_of_largest(account: pd.DataFrame, column: str) -> Any:
    """Return the first row with the largest value; without a value, the first row."""
    values = account[column].astype(float).reset_index(drop=True)
    if values.isna().all():
        return account.iloc[0]
    return account.iloc[int(values.fillna(-math.inf).to_numpy().argmax())]


def _float(value: Any) -> float:
    return math.nan if pd.isna(value) else float(value)


def _plain(name: str, value: Any) -> Any:
    """Return a value of a frame; a missing text is empty, a missing number NaN."""
    if isinstance(value, list | tuple | dict):
        return value
    if pd.isna(value):
        return "" if name in _TEXTS else math.nan
    return value
