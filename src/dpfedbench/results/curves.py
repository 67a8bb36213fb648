"""The numbers that figures draw: accuracy over a swept value, quantities over the
rounds, δ by accounting alone.

Each query returns one row for each point: `x`, `value` with `low` and `high`, `curve`,
`label`, `is_dashed`, and the columns of its cell. The rows of a curve have the same
`series`, `curve` and `label`. A level line, whose value does not depend on what the
axis shows, has the x NaN.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from dpfedbench.papers import METHODS
from dpfedbench.results.items import Item
from dpfedbench.results.summary import each_row
from dpfedbench.training.accounts import planned_deltas
from dpfedbench.training.history import read_history

_PERSONAL = {"personal_accuracy": "", "personal_worst_tenth": ", worst tenth"}
"""Columns of the clients' own models, with what a label adds for each."""


def each_curve(points: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the points of each curve."""
    for _, curve in points.groupby(["series", "curve", "label"], sort=False):
        yield curve


def sweep_points(item: Item, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the points of a sweep: accuracy in percent over the swept values, or over
    an ε; or the accuracy of the clients' own models, and of their worst tenth.

    Over an ε, a series that claims no privacy is a level line. A point without a finite
    proven ε lies at infinity: the CSV has it, and the axis has no place for it.
    """
    columns = {"value": "x", "epsilon_proven": "epsilon_proven_high"}
    shown = item.spec["x"].get("show", "value")
    rows = rows.assign(x=rows[columns.get(shown, shown)])
    curves = _PERSONAL
    if item.spec["y"].get("show", "accuracy") == "accuracy":
        curves = {"accuracy": ""}
    points = [
        rows.assign(
            curve=name,
            label=rows["label"] + addition,
            value=rows[name],
            low=rows[f"{name}_low"].clip(lower=0.0),
            high=rows[f"{name}_high"].clip(upper=100.0),
            is_dashed=rows["x"].isna() | bool(addition),
        )
        for name, addition in curves.items()
    ]
    return _in_order(pd.concat(points))


def _in_order(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points of each series from left to right."""
    number = pd.factorize(points["series"])[0]
    points = points.assign(number=number)
    return points.sort_values(["number", "curve", "x"], ignore_index=True)


def history_points(item: Item, rows: pd.DataFrame, results: str | Path) -> pd.DataFrame:
    """Return the points of a history: for each curve the mean over seeds of a column of
    history.csv.

    A curve may be divided by another column (`per`). Its band goes from the lowest seed
    to the highest, or is the mean of two more columns (quantiles) where the curve names
    them.

    Raises:
        BenchError: a run's history is missing.
    """
    axis = item.spec["x"]["column"]
    curves = []
    for row in each_row(rows):
        paths = [Path(results, "runs", run, "history.csv") for run in row.runs]
        series = item.spec["series"][row.series]
        for column, curve in series.get("curves", item.spec.get("curves", {})).items():
            per = curve.get("per")
            seeds = _aligned(paths, axis, column, per)
            low = seeds.min(axis=1)
            high = seeds.max(axis=1)
            if "band" in curve:
                low, high = (
                    _aligned(paths, axis, name, per).mean(axis=1)
                    for name in curve["band"]
                )
            points = {
                "x": seeds.index,
                "value": seeds.mean(axis=1),
                "low": low,
                "high": high,
                "cell": row.cell,
                "curve": column,
                "label": curve.get("label", row.label),
                "is_dashed": curve.get("dashed", False),
            }
            curves.append(pd.DataFrame(points))
    cells = rows.drop(columns=["x", "label"])
    return pd.concat(curves, ignore_index=True).merge(cells, on="cell")


def _aligned(
    paths: Sequence[Path], axis: str, column: str, per: str | None
) -> pd.DataFrame:
    """Return a column of several histories, by the places on the axis and seed.

    It need not be filled in every round. A budget may stop one seed before another, and
    noise that decays spends it at another pace. So all seeds are interpolated linearly
    at the places of the seed that came least far.
    """
    curves = []
    for path in paths:
        history = read_history(path)
        values = history[column]
        if per:
            values = values / history[per]
        values.index = history[axis]
        curves.append(values.dropna())
    shortest = min((curve.index for curve in curves), key=max)
    seeds = [np.interp(shortest, curve.index, curve) for curve in curves]
    return pd.DataFrame(np.transpose(seeds), index=shortest)


def account_points(item: Item) -> pd.DataFrame:
    """Return the points of a figure of accounts: for each series δ at its ε, by
    accounting alone.

    Over a swept value it is δ after all rounds, over the column "round" δ after so
    many.
    """
    claims = {name: method.claims for name, method in METHODS.items()}
    frame = planned_deltas(item.cells, item.spec, claims)
    return _in_order(frame.assign(curve="delta", low=np.nan, high=np.nan))


def published_points(item: Item, printed: pd.DataFrame) -> pd.DataFrame:
    """Return the published numbers as points of the figure."""
    first = item.cells[0]
    return printed.assign(
        dataset=first["published_dataset"],
        task=first["task"],
        series="published",
        curve="accuracy",
        label=printed["variant"],
        source=f"{item.paper}, " + printed["source"],
    )
