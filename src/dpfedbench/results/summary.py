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
from dpfedbench.evaluation.intervals import mean_interval
from dpfedbench.results.columns import DICTIONARY, UNIT_PREFIXES, names, run_columns
from dpfedbench.results.formats import with_epsilon_texts
from dpfedbench.results.runs_table import SEPARATOR, collect_cells, collect_runs

_KEY = ["paper", "item", "cell"]
"""Columns that the seeds of one cell share and no other cell has."""
_OF_LARGEST = {
    "epsilon_claimed": ["epsilon_claimed_low", "claimed_status", "claimed_explanation"],
    "epsilon_proven_high": [
        *("adjacency", "observer", "epsilon_proven_low"),
        *("proven_status", "proven_explanation"),
    ],
    "epsilon_image_level": ["image_level_explanation"],
}
"""Each ε, and the columns that are those of the seed with the largest."""
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
    if not len(cells):
        return pd.DataFrame()
    cells = cells.drop(columns="audited_run", errors="ignore")
    of_runs = [name for name in [*run_columns(), _COHORT] if name not in cells]
    seeds = _filled(cells.merge(runs.reindex(columns=["run", *of_runs]), on="run"))
    rows = _over_seeds(seeds)
    units = []
    for prefix in UNIT_PREFIXES if by_unit else UNIT_PREFIXES[:1]:
        privacy = _privacy_of_unit(seeds, prefix)
        unit = rows.drop(columns=privacy.columns, errors="ignore").join(privacy)
        units.append(unit if not prefix else unit[unit["unit"] != ""])
    by_cell = pd.concat(units).sort_values("number", kind="stable", ignore_index=True)
    return with_epsilon_texts(by_cell.infer_objects())


def _filled(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame in which a missing text is empty and a missing number NaN."""
    texts = DICTIONARY.loc[DICTIONARY["type"] == "text", "name"]
    missing = {f"{prefix}{name}": "" for prefix in UNIT_PREFIXES for name in texts}
    frame = frame.astype(object).where(frame.notna(), math.nan)
    present = {name: text for name, text in missing.items() if name in frame}
    return frame.fillna(present).infer_objects()


def _over_seeds(seeds: pd.DataFrame) -> pd.DataFrame:
    """Return the row of each cell, with the privacy of its first seed."""
    times = seeds["milliseconds_per_client"].fillna(seeds["milliseconds_per_record"])
    seeds = seeds.assign(milliseconds=times)
    groups = seeds.groupby(_KEY, sort=False)
    rows = seeds.drop_duplicates(_KEY).set_index(_KEY, drop=False)
    rows["number"] = range(len(rows))
    rows["seeds"] = groups.size()
    rows["runs"] = groups["run"].agg(tuple)
    rows["folder"] = rows["run"].str.rpartition("/")[0]
    rows["test_count"] = groups["test_count"].sum()
    rows["rounds"] = groups["rounds_run"].mean()
    rows["cohort"] = rows[_COHORT]
    rows["accuracies"] = groups["accuracy"].agg(tuple)
    rows["notices"] = groups["notices"].agg(_different_notices)
    for name in ("parameters", "seconds"):
        rows[name] = groups[name].agg(lambda values: values.mean(skipna=False))
    for name in ("milliseconds", "validation_accuracy", "accuracy"):
        intervals = pd.DataFrame(
            [interval_columns(name, values) for _, values in groups[name]], rows.index
        )
        if name == "accuracy":  # of a single seed over its own tasks or records
            intervals = intervals.where(rows["seeds"] > 1, rows[intervals.columns])
        rows[intervals.columns] = intervals
    over = rows["test_unit"] + "s"
    rows["interval_over"] = over.mask(rows["seeds"] > 1, "seeds")
    return rows


def _different_notices(notices: Iterable[str]) -> tuple[str, ...]:
    texts = SEPARATOR.join(notices).split(SEPARATOR)
    return tuple(dict.fromkeys(filter(None, texts)))


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


def _privacy_of_unit(seeds: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """Return the privacy columns of one unit for each cell, of the worst seed for each
    ε.
    """
    columns = {f"{prefix}{name}": name for name in names("privacy")}
    accounts = seeds[[*columns]].rename(columns=columns).join(seeds[_KEY])
    groups = accounts.groupby(_KEY, sort=False)
    protected = accounts[accounts["unit"] != ""]
    differ = protected.groupby(_KEY)[["unit", "delta"]].nunique().max(axis=1) > 1
    if differ.any():
        raise BenchError(
            f"the seeds of {differ.idxmax()} differ in delta or unit: delete the folders"
            " of its runs and run again"
        )
    rows = accounts.drop_duplicates(_KEY).set_index(_KEY)
    rows["delta"] = rows["delta"].where(rows["unit"] != "")
    rows["accounted_multiplier"] = groups["accounted_multiplier"].min()
    for largest, further in _OF_LARGEST.items():
        ordered = accounts.sort_values(largest, ascending=False, kind="stable")
        worst = ordered.drop_duplicates(_KEY).set_index(_KEY)
        rows[[largest, *further]] = worst[[largest, *further]]
    for name in ("claimed", "proven"):
        rows[f"{name}_status"] = rows[f"{name}_status"].replace("", "none")
        rows[f"{name}_excess"] = ""
    return rows


def each_row(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows of a frame, with its columns as attributes."""
    yield from frame.itertuples()
