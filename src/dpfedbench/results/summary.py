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

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import Interval, mean_interval, seeds_interval
from dpfedbench.results.columns import CELLS, PRIVACY, UNIT_PREFIXES, names
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
_TEXTS = {column.name for column in [*CELLS, *PRIVACY] if column.type == "text"}


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
    runs_by_name = {record["run"]: record for record in _records(runs)}
    seeds_of_cells: dict[tuple[Any, ...], list[Record]] = {}
    for record in _records(cells):
        key = (record["paper"], record["item"], record["cell"])
        seeds_of_cells.setdefault(key, []).append(record)
    rows = []
    for seeds in seeds_of_cells.values():
        of_runs = [runs_by_name[seed["run"]] for seed in seeds]
        row = _shared_columns(seeds) | _training_columns(of_runs)
        row |= _accuracy_columns(seeds)
        for prefix in UNIT_PREFIXES if by_unit else UNIT_PREFIXES[:1]:
            unit = _unit_columns(of_runs, prefix)
            if unit["unit"] or not prefix:
                rows.append(row | unit)
    return pd.DataFrame(rows)


def _records(frame: pd.DataFrame) -> Iterator[Record]:
    """Yield the rows of a frame; a missing text is empty, a missing number NaN."""
    columns = {}
    for name in frame:
        unit_name = str(name).removeprefix("second_").removeprefix("third_")
        missing = "" if unit_name in _TEXTS else math.nan
        values = frame[name].astype(object)
        columns[str(name)] = values.where(values.notna(), missing).to_list()
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def each_row(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows of a frame, with its columns as attributes."""
    yield from frame.itertuples()


def row_interval(row: Any, name: str = "accuracy") -> Interval:
    """Return a value of a row with its interval."""
    value, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    over = row.interval_over if name == "accuracy" else "seeds"
    return Interval(mean=value, low=low, high=high, count=row.seeds, over=over)


def _shared_columns(seeds: Sequence[Record]) -> Record:
    first = seeds[0]
    shared = {name: value for name, value in first.items() if name not in _OF_SEED}
    return shared | {
        "runs": tuple(seed["run"] for seed in seeds),
        "seeds": len(seeds),
        "folder": str(Path(first["run"]).parent),
    }


def _training_columns(runs: Sequence[Record]) -> Record:
    times = [
        run["milliseconds_per_client"]
        if not math.isnan(run["milliseconds_per_client"])
        else run["milliseconds_per_record"]
        for run in runs
    ]
    notices = [text for run in runs for text in run["notices"].split(SEPARATOR) if text]
    validation = [run["validation_accuracy"] for run in runs]
    return {
        **_interval_columns("milliseconds", _over_seeds(times)),
        **_interval_columns("validation_accuracy", _over_seeds(validation)),
        "parameters": _mean(runs, "parameters"),
        "seconds": _mean(runs, "seconds"),
        "rounds": _mean(runs, "rounds_run"),
        "cohort": float(runs[0].get("participation.cohort", math.nan)),
        "notices": tuple(dict.fromkeys(notices)),
    }


def _mean(runs: Sequence[Record], name: str) -> float:
    return sum(float(run[name]) for run in runs) / len(runs)


def _over_seeds(values: list[float]) -> Interval:
    if any(map(math.isnan, values)):
        return Interval(
            mean=math.nan, low=math.nan, high=math.nan, count=0, over="seeds"
        )
    return mean_interval(values, over="seeds")


def _interval_columns(name: str, interval: Interval) -> dict[str, float]:
    return {
        name: interval.mean,
        f"{name}_low": interval.low,
        f"{name}_high": interval.high,
    }


def _accuracy_columns(seeds: Sequence[Record]) -> Record:
    """Return accuracy and interval, of a single seed over its own tasks or records."""
    first = seeds[0]
    accuracies = [float(seed["accuracy"]) for seed in seeds]
    if first["test_unit"] == "task":
        of_tasks = [list(map(float, seed["task_accuracies"])) for seed in seeds]
        interval = seeds_interval(of_tasks)
    elif len(seeds) > 1:
        interval = mean_interval(accuracies, over="seeds")
    else:
        interval = Interval(
            mean=accuracies[0],
            low=float(first["accuracy_low"]),
            high=float(first["accuracy_high"]),
            count=int(first["test_count"]),
            over="records",
        )
    return {
        **_interval_columns("accuracy", interval),
        "interval_over": interval.over,
        "test_count": sum(int(seed["test_count"]) for seed in seeds),
        "accuracies": tuple(accuracies),
    }


def _unit_columns(runs: Sequence[Record], prefix: str) -> Record:
    """Return the privacy columns of one unit, of the worst seed for each ε."""
    accounts = [
        {name: run[f"{prefix}{name}"] for name in names(PRIVACY)} for run in runs
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
    known = [value for value in multipliers if not math.isnan(value)]
    row["accounted_multiplier"] = min(known, default=math.nan)
    for largest, further in _OF_LARGEST.items():
        worst = max(accounts, key=lambda account: _known(account[largest]))
        row |= {name: worst[name] for name in [largest, *further]}
    for name in ("claimed", "proven"):
        row[f"{name}_status"] = row[f"{name}_status"] or "none"
        row[f"{name}_excess"] = ""
    return row


def _known(epsilon: float) -> float:
    """Return an ε for a comparison in which a missing one is the smallest."""
    return -math.inf if math.isnan(epsilon) else epsilon
