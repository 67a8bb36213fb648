"""The numbers that figures draw: accuracy over a swept value, quantities over the
rounds, δ by accounting alone.

Each query returns one row for each point, with the columns of the figure's CSV,
`is_dashed`, and further columns of its row. The rows of a curve have the same `series` and `curve`.
A level line, whose value does not depend on what the axis shows, has the x NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.files import reading
from dpfedbench.papers import METHODS
from dpfedbench.results.items import Item
from dpfedbench.results.summary import each_row
from dpsum.accounting.calibration import delta_after

_OF_ROW = ["dataset", "task", "series", "label", "epsilon_claimed", "delta", "unit"]
_POINTS = 25
"""Rounds at which δ over the rounds is computed."""


def each_curve(points: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the points of each curve."""
    for _, curve in points.groupby(["series", "curve", "label"], sort=False):
        yield curve


def sweep_points(item: Item, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the points of a sweep: accuracy in percent over the swept values, or over
    an ε.

    Over an ε, a series that claims no privacy is a level line. A point without a finite
    proven ε lies at infinity: the CSV has it, and the axis has no place for it.
    """
    points = rows.assign(
        curve="accuracy",
        value=rows["accuracy"],
        low=rows["accuracy_low"],
        high=rows["accuracy_high"],
        epsilon_proven=rows["epsilon_proven_high"],
        source="measured",
        number=pd.factorize(rows["series"])[0],
    )
    points["x"] = points[item.spec["x"].get("show", "x").replace("value", "x")]
    points["is_dashed"] = points["x"].isna()
    return points.sort_values(["number", "x"], ignore_index=True)


def history_points(item: Item, rows: pd.DataFrame, results: str | Path) -> pd.DataFrame:
    """Return the points of a history: for each curve the mean over seeds of a column of
    history.csv.

    A curve may be divided by another column (`per`). Its band goes from the lowest seed
    to the highest, or is the mean of two more columns (quantiles) where the curve names
    them.

    Raises:
        BenchError: a run's history is missing or has no such column, or an empty one.
    """
    axis = item.spec["x"]["column"]
    curves = []
    for row in each_row(rows):
        paths = [Path(results, "runs", run, "history.csv") for run in row.runs]
        series = item.spec["series"][row.series]
        for column, curve in series.get("curves", item.spec.get("curves", {})).items():
            per = curve.get("per")
            seeds = _aligned(paths, axis, column, per)
            low, high = seeds.min(axis=1), seeds.max(axis=1)
            if "band" in curve:
                low, high = (
                    _aligned(paths, axis, name, per).mean(axis=1)
                    for name in curve["band"]
                )
            points = pd.DataFrame(
                {"value": seeds.mean(axis=1), "low": low, "high": high}
            )
            shared = {name: getattr(row, name) for name in _OF_ROW} | {
                "curve": column,
                "label": curve.get("label", row.label),
                "epsilon_proven": row.epsilon_proven_high,
                "source": "measured",
                "is_dashed": curve.get("dashed", False),
            }
            curves.append(points.assign(**shared, x=points.index))
    return pd.concat(curves, ignore_index=True)


def read_history(path: Path) -> pd.DataFrame:
    """Read a run's history.csv, one row for each round.

    Raises:
        BenchError: it is missing, or is no CSV with a column `round`.
    """
    try:
        with reading(path):
            return pd.read_csv(path).astype({"round": int})
    except (ValueError, KeyError) as error:
        raise BenchError(
            f"{path} cannot be read ({error}): delete it and run the workflow again"
        ) from error


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
        history = read_history(path).dropna(axis="columns", how="all")
        for name in filter(None, (column, per, axis)):
            if name not in history:
                raise BenchError(
                    f"{path} has no {name} to draw: name one of {', '.join(map(str, history))}"
                )
        values = history[column] / (history[per] if per else 1)
        values.index = history[axis]
        curves.append(values.dropna())
    shortest = min((curve.index for curve in curves), key=max)
    return pd.DataFrame(
        [np.interp(shortest, curve.index, curve) for curve in curves], columns=shortest
    ).T


def account_points(item: Item) -> pd.DataFrame:
    """Return the points of a figure of accounts: for each series δ at its ε, by
    accounting alone.

    Over a swept value it is δ after all rounds, over the column "round" δ after so
    many.
    """
    points = []
    for cell in item.cells:
        series = item.spec["series"][cell["series"]]
        total = int(cell["mechanism"]["sampler"]["rounds"])
        rounds_by_x = {cell["x"] or 0.0: total}
        if "column" in item.spec["x"]:
            spaced = np.linspace(1, total, min(_POINTS, total)).round()
            rounds_by_x = {float(rounds): int(rounds) for rounds in spaced}
        points += [
            {
                **{name: cell[name] for name in ("dataset", "task", "series", "label")},
                "x": x,
                "value": _delta(cell, series["profile"], rounds, series["epsilon"]),
                "is_dashed": series["profile"] == "claimed",
            }
            for x, rounds in rounds_by_x.items()
        ]
    frame = pd.DataFrame(points).assign(
        curve="delta", source="measured", low=np.nan, high=np.nan
    )
    frame["number"] = pd.factorize(frame["series"])[0]
    return frame.sort_values(["number", "x"], ignore_index=True)


def _delta(cell: Any, profile: str, rounds: int, epsilon: float) -> float:
    """Return δ after some rounds; 1 without noise, and under `proven` where the clipping
    threshold reads raw norms.
    """
    mechanism = cell["mechanism"]
    multiplier = mechanism["noise_multiplier"]
    if multiplier is None or (profile == "proven" and not mechanism["counted"]):
        return 1.0
    return delta_after(
        profile,
        mechanism["sampler"],
        multiplier,
        rounds,
        epsilon,
        claims=METHODS[cell["method"]].claims,
        mechanism=mechanism["mechanism"],
    )


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
