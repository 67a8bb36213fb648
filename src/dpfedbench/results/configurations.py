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
from dpfedbench.results.columns import names
from dpfedbench.results.load import load_cells, load_runs
from dpfedbench.results.summary import read_rows

APPEARANCE = ["paper", "item", "kind", "series", "repairs"]
"""Columns of a cell that `shown_in` has."""
PRIVATE = "private"
NO_PRIVATE_DATA = "no private data"
NOT_PRIVATE = "not private"


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
    of a row are those of `summary.summarize`, `shown_in`, and `group`: "private",
    "no private data" (nothing was trained on the clients) or "not private".

    Raises:
        BenchError: a file of a run is missing or damaged.
    """
    records = configurations(cells)
    if not records:
        return pd.DataFrame()
    return with_groups(
        read_rows(
            results,
            records,
            by_unit=True,
            runs=runs,
        )
    )


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
    """Return the rows with the column `group`."""
    is_trained = rows["method"].map(lambda name: METHODS[name].trained)
    groups = is_trained.map({True: NOT_PRIVATE, False: NO_PRIVATE_DATA})
    return rows.assign(group=groups.where(rows["unit"] == "", PRIVATE))


def rank(
    rows: pd.DataFrame, *, dataset: str, task: str, unit: str, epsilon: float
) -> pd.DataFrame:
    """Return which methods keep an ε on a data set, the most accurate first.

    Private configurations of that unit come first: those whose proven ε is at most
    `epsilon`, whatever their paper claims. What needs no private data follows, and then
    what is trained without privacy; they show how much the private data add, and what
    privacy costs. Choosing a configuration by this list is not covered by its account.

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
    return fitting.assign(place=fitting["group"].map(order.index)).sort_values(
        ["place", "accuracy"], ascending=[True, False], ignore_index=True
    )
