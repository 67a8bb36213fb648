"""The numbers that figures draw: accuracy over a swept value, quantities over the
rounds, δ by accounting alone.

Each query returns one row for each point, with the columns of `COLUMNS`, `is_dashed`,
and for points with an ε their row's columns `claimed_text` and `proven_text`. The rows
of a curve have the same `series` and `curve`. A level line, whose value does not depend
on what the axis shows, is a row whose x is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.files import check_file, reading
from dpfedbench.papers import METHODS
from dpfedbench.results.formats import format_epsilon
from dpfedbench.results.items import Item
from dpfedbench.results.summary import each_row
from dpsum.accounting.calibration import delta_after

COLUMNS = [
    *("dataset", "task", "series", "curve", "label", "x", "value", "low", "high"),
    *("epsilon_claimed", "epsilon_proven", "delta", "unit", "source"),
]
_POINTS = 25
"""Rounds at which δ over the rounds is computed."""


def sweep_points(item: Item, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the points of a sweep: accuracy in percent over the swept values, or over
    an ε.

    Over an ε, a series that claims no privacy is a level line. A point without a finite
    proven ε lies at infinity: the CSV has it, and the axis has no place for it.
    """
    shows = item.spec["x"].get("show", "value")
    column = {"epsilon_proven": "epsilon_proven_high", "value": "x"}.get(shows, shows)
    curves = []
    for series, of_series in rows.groupby("series", sort=False):
        ordered = of_series.sort_values(column, kind="stable")
        points = pd.DataFrame(
            _point(series, "accuracy", ordered.iloc[0]["label"], getattr(row, column))
            | {"value": row.accuracy, "low": row.accuracy_low}
            | {"high": row.accuracy_high}
            | _epsilon_columns(row)
            for row in each_row(ordered)
        )
        points["is_dashed"] = is_level(points)
        # The axis moves the privacy where an ε differs from point to point.
        texts = points[["claimed_text", "proven_text"]]
        differ = len(texts.map(lambda text: (text.text, text.note)).drop_duplicates())
        points["shows_epsilons"] = (
            shows == "value" and differ > 1 and not is_level(points)
        )
        curves.append(points)
    return _with_data(item, curves)


def _point(series: Any, curve: str, label: str, x: float) -> dict[str, Any]:
    return {
        "series": series,
        "curve": curve,
        "label": label,
        "x": x,
        "source": "measured",
    }


def _epsilon_columns(row: Any) -> dict[str, Any]:
    return {
        "epsilon_claimed": row.epsilon_claimed,
        "epsilon_proven": row.epsilon_proven_high,
        "delta": row.delta,
        "unit": row.unit,
        "claimed_text": format_epsilon(row, "claimed"),
        "proven_text": format_epsilon(row, "proven"),
    }


def _with_data(item: Item, curves: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return all curves as one frame, with the data set and task of their series."""
    points = pd.concat(curves, ignore_index=True)
    cells = {cell["series"]: cell for cell in reversed(item.cells)}
    for name in ("dataset", "task"):
        points[name] = [cells[series][name] for series in points["series"]]
    if "shows_epsilons" not in points:
        points["shows_epsilons"] = False
    return points.reindex(columns=[*COLUMNS, *(set(points) - set(COLUMNS))])


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
        of_series = item.spec["series"][row.series]
        drawn_columns = of_series.get("curves", item.spec.get("curves", {}))
        for column, curve in drawn_columns.items():
            per = curve.get("per")
            xs, seeds = _aligned(paths, axis, column, per)
            low = seeds.min(axis=0)
            high = seeds.max(axis=0)
            if "band" in curve:
                low, high = (
                    _aligned(paths, axis, name, per)[1].mean(axis=0)
                    for name in curve["band"]
                )
            label = curve.get("label", row.label)
            points = pd.DataFrame(
                {"x": xs, "value": seeds.mean(axis=0), "low": low, "high": high}
            )
            shared = _point(row.series, column, label, 0.0) | _epsilon_columns(row)
            del shared["x"], shared["claimed_text"], shared["proven_text"]
            is_dashed = curve.get("dashed", False)
            curves.append(points.assign(**shared, is_dashed=is_dashed))
    return _with_data(item, curves)


def read_history(path: Path) -> pd.DataFrame:
    """Read a run's history.csv, one row for each round.

    Raises:
        BenchError: it is missing, or is no CSV with a column `round`.
    """
    try:
        with reading(path):
            check_file(path)
            table = pd.read_csv(path)
        table["round"]
    except (ValueError, KeyError) as error:
        raise BenchError(
            f"{path} cannot be read ({error}): delete it and run the workflow again"
        ) from error
    return table


def _aligned(
    paths: Sequence[Path], axis: str, column: str, per: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the places [n] and the values [seeds, n] of a column that need not be
    filled in every round.

    A budget may stop one seed before another, and noise that decays spends it at
    another pace. So all seeds are interpolated linearly at the places of the seed that
    came least far.
    """
    curves = []
    for path in paths:
        table = read_history(path).dropna(axis="columns", how="all")
        names = [name for name in (column, per, axis) if name is not None]
        if missing := [name for name in names if name not in table]:
            raise BenchError(
                f"{path} has no {missing[0]} to draw: name one of"
                f" {', '.join(map(str, table))}"
            )
        numbers = table[column].to_numpy(float)
        if per is not None:
            numbers = numbers / table[per].to_numpy(float)
        is_filled = np.isfinite(numbers)
        curves.append((table[axis].to_numpy(float)[is_filled], numbers[is_filled]))
    # All seeds at the rounds of the one that stopped first.
    shortest = min((xs for xs, _ in curves), key=lambda xs: xs[-1])
    aligned = [np.interp(shortest, xs, numbers) for xs, numbers in curves]
    return shortest, np.stack(aligned)


def account_points(item: Item) -> pd.DataFrame:
    """Return the points of a figure of accounts: for each series δ at its ε, by
    accounting alone.

    Over a swept value it is δ after all rounds, over the column "round" δ after so
    many.
    """
    by_series: dict[str, list[Any]] = {}
    for cell in item.cells:
        by_series.setdefault(cell["series"], []).append(cell)
    curves = []
    for series, cells in by_series.items():
        of_series = item.spec["series"][series]
        profile = of_series["profile"]
        epsilon = of_series["epsilon"]
        ordered = sorted(cells, key=lambda cell: cell["x"] or 0.0)
        label = ordered[0]["label"]
        points = pd.DataFrame(
            _point(series, "delta", label, x)
            | {"value": _delta(cell, profile, rounds, epsilon)}
            for cell, x, rounds in _account_places(item, ordered)
        )
        curves.append(points.assign(is_dashed=profile == "as_claimed"))
    return _with_data(item, curves)


def _account_places(
    item: Item, cells: Sequence[Any]
) -> Iterator[tuple[Any, float, int]]:
    """Yield for each point the cell, its place on the axis, and the number of
    rounds.
    """
    if "column" not in item.spec["x"]:
        for cell in cells:
            yield cell, cell["x"] or 0.0, _rounds(cell)
        return
    total = _rounds(cells[0])
    spaced = np.linspace(1, total, min(_POINTS, total))
    for round_number in dict.fromkeys(round(value) for value in spaced):
        yield cells[0], float(round_number), round_number


def _rounds(cell: Any) -> int:
    return int(cell["mechanism"]["sampler"]["rounds"])


def _delta(cell: Any, profile: str, rounds: int, epsilon: float) -> float:
    """Return δ after some rounds; 1 without noise, and under `holds` where the clipping
    threshold reads raw norms.
    """
    mechanism = cell["mechanism"]
    if mechanism["noise_multiplier"] is None:
        return 1.0
    if profile == "holds" and not mechanism["counted"]:
        return 1.0
    return delta_after(
        profile,
        mechanism["sampler"],
        mechanism["noise_multiplier"],
        rounds,
        epsilon,
        claims=METHODS[cell["method"]].claims,
        mechanism=mechanism["mechanism"],
    )


def published_points(item: Item, printed: pd.DataFrame) -> pd.DataFrame:
    """Return the published numbers as points of the figure."""
    first = item.cells[0]
    points = pd.DataFrame(
        {
            "dataset": first["published_dataset"],
            "task": first["task"],
            "series": "published",
            "curve": "accuracy",
            "label": printed["variant"],
            "x": printed["x"],
            "value": printed["value"],
            "source": [f"{item.paper}, {source}" for source in printed["source"]],
        }
    )
    return points.reindex(columns=COLUMNS)


def is_level(points: pd.DataFrame) -> bool:
    """Whether a curve is a level line."""
    return bool(points["x"].isna().all())


def is_still(points: pd.DataFrame, share: float) -> bool:
    """Whether all values are positive and differ by at most a share of the largest."""
    low = points["value"].min()
    high = points["value"].max()
    return bool(high > 0 and high - low <= share * high)


def finite(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points that an axis has a place for."""
    return points[np.isfinite(points["x"])]


def has_no_delta(points: pd.DataFrame) -> bool:
    """Whether a curve of δ is 1 everywhere."""
    return math.isclose(points["value"].min(), 1.0, rel_tol=0, abs_tol=0)
