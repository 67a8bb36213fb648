"""One row per configuration, and the ranking of configurations at a given ε.

A configuration is what the runs of several seeds share. The page, the table of privacy
and a user's notebook start from its rows.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.papers import METHODS
from dpfedbench.results.columns import names, run_columns
from dpfedbench.results.load import load_cells, load_runs
from dpfedbench.results.summary import collect_runs_of, read_rows

APPEARANCE = ["paper", "item", "kind", "series", "repairs"]
"""Columns of a cell that `shown_in` has."""
PRIVATE = "private"
NO_PRIVATE_DATA = "no private data"
NOT_PRIVATE = "not private"
_NOISE = ("noise.", "budget.")
"""Beginnings of the settings that change the noise multiplier."""
_SHOWN = 2
"""Differing settings, besides the noise, that a row names at the most."""


def configurations(cells: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the configurations that some cells show, one mapping for each run.

    A configuration is named as in the first table that shows it, or as in the first
    figure where no table does. It has the seeds of all, and `shown_in`: (paper, item,
    kind, series, repairs) of each of its cells.
    """
    by_folder: dict[str, list[Mapping[str, Any]]] = {}
    for cell in sorted(cells, key=lambda cell: not cell["kind"].endswith("table")):
        if cell["kind"] != "account":
            by_folder.setdefault(str(Path(cell["run"]).parent), []).append(cell)
    records = []
    for number, of_folder in enumerate(by_folder.values()):
        first = of_folder[0]
        appearances = [tuple(cell[name] for name in APPEARANCE) for cell in of_folder]
        shared = {
            **first,
            "item": "",
            "cell": number,
            "test": "",
            "variant": first["variant"] or first["label"],
            "shown_in": tuple(dict.fromkeys(appearances)),
        }
        runs = {cell["seed"]: cell["run"] for cell in of_folder}
        for seed in sorted(runs):
            records.append(
                {
                    **shared,
                    "seed": seed,
                    "run": runs[seed],
                }
            )
    return records


def read_configurations(
    cells: Iterable[Mapping[str, Any]],
    results: str | Path,
    runs: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return one row for each configuration and each unit that it protects.

    `runs` is the frame of their runs, where it has been collected already. The columns
    of a row are those of `summary.summarize`, `shown_in`, and these:

    - `group`: "private", "no private data" (nothing was trained on the clients) or "not
      private".
    - `accuracy_lost`: percentage points below the most accurate configuration that is
      not private, on the same data set and task; NaN without one.
    - `difference`: the settings in which configurations of the same name differ, such
      as "z = 4".

    Raises:
        BenchError: a file of a run is missing or damaged.
    """
    records = configurations(cells)
    if not records:
        return pd.DataFrame()
    if runs is None:
        runs = collect_runs_of(results, records)
    rows = read_rows(
        results,
        records,
        by_unit=True,
        runs=runs,
    )
    return with_differences(with_groups(rows), runs)


def load_configurations(results: str | Path = "results") -> pd.DataFrame:
    """Return the rows of `read_configurations` of a finished results folder.

    Raises:
        BenchError: there is no such folder, or the workflow has not finished.
    """
    runs = load_runs(results)
    cells = load_cells(results).drop(columns=names("test")[:-1])
    records = [dict(row) for _, row in cells.iterrows()]
    return read_configurations(records, results, runs)


def with_groups(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the columns `group` and `accuracy_lost`, the points below the
    best non-private row of the same data set and test.
    """
    is_trained = rows["method"].map(lambda name: METHODS[name].trained)
    groups = is_trained.map({True: NOT_PRIVATE, False: NO_PRIVATE_DATA})
    rows = rows.assign(group=groups.where(rows["unit"] == "", PRIVATE))
    references = rows["accuracy"].where(rows["group"] == NOT_PRIVATE)
    best = references.groupby([rows["dataset"], rows["tested"]]).transform("max")
    return rows.assign(accuracy_lost=best - rows["accuracy"])


def with_differences(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the column `difference`.

    Args:
        rows: one for each configuration and unit.
        runs: the frame of their runs, with a column for each configuration value.
    """
    hidden = {*run_columns(), "run", "folder", "seed"}
    values = runs.set_index("run").drop(columns=hidden, errors="ignore").astype(str)
    z = runs.set_index("run")["noise_multiplier"]
    differences: dict[Any, str] = {}
    for _, same in rows.groupby(["title", "variant", "dataset", "tested", "unit"]):
        first_runs = [seeds[0] for seeds in same["runs"]]
        if len(set(first_runs)) == 1:
            continue
        settings = values.loc[first_runs]
        differing = [str(name) for name in settings if settings[name].nunique() > 1]
        has_noises = z.loc[first_runs].nunique() > 1
        if has_noises:
            differing = [name for name in differing if not name.startswith(_NOISE)]
        for index, run in zip(same.index, first_runs, strict=True):
            texts = [
                f"{name} = {values.at[run, name]!s}" for name in differing[:_SHOWN]
            ]
            if has_noises and pd.notna(z[run]):
                texts.insert(0, f"z = {z[run]:.3g}")
            differences[index] = ", ".join(texts)
    return rows.assign(difference=[differences.get(index, "") for index in rows.index])


def rank(
    rows: pd.DataFrame, *, dataset: str, task: str, unit: str, epsilon: float
) -> pd.DataFrame:
    """Return which methods keep an ε on a data set, the most accurate first.

    Private configurations of that unit come first: those whose proven ε is at most
    `epsilon`, whatever their paper claims. Their `rank` is one more than the number of
    those whose 95 % interval lies above theirs, so that configurations which the test
    does not tell apart share a rank. What needs no private data follows, and then what
    is trained without privacy, without a rank; they show how much the private data add,
    and what privacy costs. Choosing a configuration by this list is not covered by its account.

    Args:
        rows: of `load_configurations`.
        dataset: name of the data set, such as `glyphs`.
        task: task of the test, such as `5-way 1-shot`.
        unit: `client` or `record`.
        epsilon: the largest ε that is accepted.

    Raises:
        BenchError: nothing was tested on that data set and task.
    """
    of_task = rows[(rows["dataset"] == dataset) & (rows["tested"] == task)]
    if not len(of_task):
        known = rows["dataset"] + ", " + rows["tested"]
        raise BenchError(
            f"no configuration was tested on {dataset}, {task}: there are"
            f" {'; '.join(sorted(known.unique()))}"
        )
    keeps_epsilon = (
        (of_task["unit"] == unit)
        & (of_task["proven_status"] == "proved")
        & (of_task["epsilon_proven_high"] <= epsilon)
    )
    fitting = of_task[keeps_epsilon | (of_task["group"] != PRIVATE)]
    order = [PRIVATE, NO_PRIVATE_DATA, NOT_PRIVATE]
    ranked = fitting.assign(place=fitting["group"].map(order.index)).sort_values(
        ["place", "accuracy"], ascending=[True, False], ignore_index=True
    )
    is_private = ranked["group"] == PRIVATE
    lows = ranked["accuracy_low"].fillna(ranked["accuracy"])[is_private].to_numpy()
    highs = ranked["accuracy_high"].fillna(ranked["accuracy"])
    higher_counts = [int((lows > high).sum()) for high in highs]
    ranks = pd.Series(higher_counts, ranked.index, dtype="Int64") + 1
    return ranked.assign(rank=ranks.where(is_private))
