"""Rows of tables and figures: the runs of a cell summarised over their seeds.

`summarize` is the one query that tables, figures and the page start from. A row has the
columns of `columns.CELLS` that all seeds of a cell share, and these:

- `runs`, `seeds`: the runs and how many there are; `folder` is the one that they share.
- `accuracy`, `accuracy_low`, `accuracy_high`: mean and 95 % interval, in percent;
  `interval_over` is what was taken as independent: seeds, tasks or records.
- `test_count`: tested tasks or records of all seeds.
- `milliseconds`, `validation_accuracy`, each with `_low` and `_high`: intervals over
  seeds; NaN where a seed has no value.
- `personal_accuracy`, `personal_worst_tenth`, each with `_low` and `_high`: intervals
  over seeds. `personal_spread`: its mean over seeds.
- `parameters`, `seconds`: means over seeds; NaN where a seed has no value. `rounds`:
  the mean number of rounds that were run. `cohort`: configured clients or records a
  round; `clients_of_round`: its clients; `lot`: records of a client's lot, if any.
- `unit`, `delta`, each ε and all other columns of the account and the audit: those of
  the seed with the largest ε, since seeds differ where one stopped earlier.
- `unit_label`: the unit for readers, such as "client (synthetic)".
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
from dpfedbench.evaluation.intervals import mean_interval
from dpfedbench.results.columns import DICTIONARY, UNIT_PREFIXES, names, run_columns
from dpfedbench.results.formats import with_epsilon_texts
from dpfedbench.results.runs_table import SEPARATOR, collect_cells, collect_runs

_KEY = ["paper", "item", "cell"]
"""Columns that the seeds of one cell share and no other cell has."""
_COHORT = "participation.cohort"
_LOT = "participation.lot"
_OVER_SEEDS = (
    "milliseconds",
    "validation_accuracy",
    "accuracy",
    "personal_accuracy",
    "personal_worst_tenth",
)
"""Columns with an interval over seeds."""
_SIZES = [_COHORT, _LOT, "participation.kind", "clients.count"]


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
    audited_runs = {cell["run"]: cell.get("audited_run", "") for cell in cells}
    return collect_runs(results, audited_runs, audited_runs=audited_runs)


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
    if not len(cells):
        return pd.DataFrame()
    cells = cells.drop(columns="audited_run", errors="ignore")
    of_runs = [name for name in [*run_columns(), *_SIZES] if name not in cells]
    seeds = _filled(cells.merge(runs.reindex(columns=["run", *of_runs]), on="run"))
    seeds["number"] = range(len(seeds))
    units = [_over_seeds(seeds)]
    for prefix in UNIT_PREFIXES[1:] if by_unit else ():
        of_unit = seeds[seeds[f"{prefix}unit"] != ""].drop(columns=names("privacy"))
        columns = {f"{prefix}{name}": name for name in names("privacy")}
        if len(of_unit):
            units.append(_over_seeds(of_unit.rename(columns=columns)))
    by_cell = pd.concat(units).sort_values(
        "number",
        kind="stable",
        ignore_index=True,
    )
    return with_epsilon_texts(by_cell.infer_objects())


def _filled(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame in which a missing text is empty and a missing number NaN."""
    texts = DICTIONARY.loc[DICTIONARY["type"] == "text", "name"]
    empty = {f"{prefix}{name}": "" for prefix in UNIT_PREFIXES for name in texts}
    objects = frame.astype(object).where(frame.notna(), math.nan)
    return objects.fillna(empty).infer_objects()


def _over_seeds(seeds: pd.DataFrame) -> pd.DataFrame:
    """Return the row of each cell, with account and audit of its worst seed."""
    times = seeds["milliseconds_per_client"].fillna(seeds["milliseconds_per_record"])
    seeds = seeds.assign(milliseconds=times)
    groups = seeds.groupby(_KEY, sort=False)
    differ = groups[["unit", "delta"]].nunique().max(axis=1) > 1
    if differ.any():
        raise BenchError(
            f"the seeds of {differ.idxmax()} differ in delta or unit: delete the folders"
            " of its runs and run again"
        )
    combined = groups.agg(
        number=("number", "min"),
        seeds=("run", "size"),
        runs=("run", tuple),
        test_count=("test_count", "sum"),
        rounds=("rounds_run", "mean"),
        parameters=("parameters", _mean),
        personal_spread=("personal_spread", _mean),
        seconds=("seconds", _mean),
        accuracies=("accuracy", tuple),
        notices=("notices", _different_notices),
    )
    order = ["epsilon_proven_high", "epsilon_claimed", "epsilon_image_level"]
    ordered = seeds.sort_values(
        order,
        ascending=False,
        kind="stable",
    )
    worst = ordered.drop_duplicates(_KEY).set_index(_KEY, drop=False)
    rows = worst.loc[combined.index].assign(**combined)
    rows["folder"] = rows["run"].str.rpartition("/")[0]
    # Where lots of each client's records are drawn, all clients take part.
    rows["cohort"] = rows[_COHORT].fillna(rows[_LOT])
    has_lots = rows["participation.kind"] == "poisson-lots"
    rows["lot"] = rows["cohort"].where(has_lots)
    rows["clients_of_round"] = rows["cohort"].mask(has_lots, rows["clients.count"])
    rows["delta"] = rows["delta"].where(rows["unit"] != "")
    rows["unit_label"] = unit_labels(rows)
    for name in ("claimed", "proven"):
        rows[f"{name}_status"] = rows[f"{name}_status"].replace("", "none")
        rows[f"{name}_excess"] = ""
    for name in _OVER_SEEDS:
        intervals = pd.DataFrame(
            [interval_columns(name, values) for _, values in groups[name]], rows.index
        )
        if name == "accuracy":  # of a single seed over its own tasks or records
            intervals = intervals.where(rows["seeds"] > 1, rows[intervals.columns])
        rows[intervals.columns] = intervals
    over = rows["test_unit"] + "s"
    rows["interval_over"] = over.mask(rows["seeds"] > 1, "seeds")
    return rows


def unit_labels(rows: pd.DataFrame) -> pd.Series:
    """Return whom ε protects, for readers: a client's origin stands beside it."""
    has_origin = (rows["unit"] == "client") & (rows["client_origin"] != "")
    labels = rows["unit"] + " (" + rows["client_origin"] + ")"
    return labels.where(has_origin, rows["unit"])


def _mean(values: pd.Series) -> float:
    """Return the mean, or NaN where a value is missing."""
    return float(values.mean(skipna=False))


def _different_notices(notices: Iterable[str]) -> tuple[str, ...]:
    texts = SEPARATOR.join(notices).split(SEPARATOR)
    return tuple(dict.fromkeys(filter(None, texts)))


def interval_columns(name: str, values: Iterable[float]) -> dict[str, float]:
    """Return the mean over seeds with its interval; NaN where a seed has no value."""
    values = [float(value) for value in values]
    if np.isnan(values).any():
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), math.nan)
    interval = mean_interval(values)
    return {
        name: interval.mean,
        f"{name}_low": interval.low,
        f"{name}_high": interval.high,
    }


def each_row(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows of a frame, with its columns as attributes."""
    yield from frame.itertuples()
