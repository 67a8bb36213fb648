"""The frontier of a data set and task: accuracy over the proven ε, of all methods and
repairs.

The role of a cell follows from its run and its account, never from a name: without
privacy it is a level line; a swept cell with a finite proven ε is a point of its
series' curve; any other is a claim, a mark at the claimed ε and an arrow to the proven
one. What protects clients and what protects records stand in panels of their own, since
their ε are not of the same thing.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpfedbench.files import read_csv
from dpfedbench.results.figure_style import (
    COLOURS,
    MARKERS,
    draw_curve,
    finite_ends,
    legend_below,
    set_log_axis,
    styled,
    wrapped,
)
from dpfedbench.results.formats import Listing, notice_sentences, plural, span
from dpfedbench.results.items import Item
from dpfedbench.results.summary import each_row, read_rows, unit_labels
from dpfedbench.results.table_columns import csv_names, listing_of

CURVE = "curve"
CLAIM = "claim"
LEVEL = "level"
TITLE = "The frontier: accuracy over the proven ε"
_ASIDE = 1.06
"""Factor between two marks that stand side by side."""
_AXIS = (0.1, 20.0)
"""Values of ε that the axis of a frontier has at least."""

_NOTES = (
    (
        "Role curve: trained with calibrated noise, the least that keeps the ε asked"
        " for. Role claim: run as published; the claimed ε is the paper's accounting,"
        " applied to the run made here. Role level: trained without privacy, so that it"
        " has no ε."
    ),
    (
        "The proven ε is that of the worst seed. Intervals are 95 % t intervals over"
        " seeds; with one seed they are over its test tasks. The table of privacy says"
        " whether an audit exceeds an ε."
    ),
)


def read(item: Item, results: str | Path) -> pd.DataFrame:
    """Return the points of a frontier: rows as `summary.summarize`, with their `role`:
    CURVE, CLAIM or LEVEL.

    A cell that protects two units has two, unless a sweep leaves one of them where it
    is. Of several seeds the worst account counts. In the CSV `epsilon_asked` is the
    swept value, empty where nothing is swept.

    Raises:
        BenchError: a file of a run is missing or damaged.
    """
    points = read_rows(results, item.cells, by_unit=True)
    is_swept = points["x"].notna() & np.isfinite(points["epsilon_proven_high"])
    points["role"] = np.where(is_swept, CURVE, CLAIM)
    points.loc[points["unit"] == "", "role"] = LEVEL
    # Of the units of a curve, those whose ε the sweep moves, if it moves any.
    units = points.groupby(["role", "series", "unit"])["epsilon_proven_high"]
    points["moves"] = units.transform("nunique") > 1
    any_moves = points.groupby(["role", "series"])["moves"].transform("any")
    is_shown = (points["role"] != CURVE) | points["moves"] | ~any_moves
    return points[is_shown].sort_values(
        "role", key=_order, kind="stable", ignore_index=True
    )


def _order(roles: pd.Series) -> pd.Series:
    """Return the places of roles in the table and in the legend."""
    return roles.map([CURVE, CLAIM, LEVEL].index)


_TEXTS = (
    "dataset",
    "task",
    "series",
    "label",
    "method",
    "role",
    "unit",
    "client_origin",
)


def read_points(path: str | Path) -> pd.DataFrame:
    """Return the points in the CSV file of a frontier.

    Raises:
        BenchError: the file is missing or damaged.
    """
    names = csv_names("frontier")
    numbers = [name for name in names if name not in _TEXTS]
    return read_csv(path, names, numbers=numbers)


def listing(table: pd.DataFrame) -> Listing:
    """Return all frontiers, as read from their CSV files, for readers."""
    return listing_of(
        table.assign(unit_label=unit_labels(table)),
        "frontiers",
        title=TITLE,
        notes=_NOTES,
    )


@styled
def draw(item: Item, points: pd.DataFrame) -> Figure:
    """Draw a panel for each unit, those with curves first; one legend below."""
    units = [unit for unit in points["unit"].unique() if unit] or [""]
    figure = Figure(figsize=(4.2 + 4.2 * len(units), 6.2))
    panels = figure.subplots(
        1,
        len(units),
        sharey=True,
        squeeze=False,
    )[0]
    looks = _looks(points)
    label = item.spec["x"]["label"]
    for axes, unit in zip(panels, units, strict=True):
        of_unit = points[points["unit"].isin([unit, ""])]
        _draw_panel(axes, of_unit, looks)
        deltas = [f"{delta:g}" for delta in sorted(of_unit["delta"].dropna().unique())]
        axes.set_xlabel(label)
        if unit:
            (protected,) = of_unit.loc[of_unit["unit"] == unit, "unit_label"].unique()
            axes.set_xlabel(f"{label} of a {protected},\nδ = {' or '.join(deltas)}")
    panels[0].set_ylabel(item.spec["y"]["label"])
    figure.suptitle(item.title)
    handles = [
        Line2D(
            [],
            [],
            label=row.label,
            **looks[row.series],
        )
        for row in each_row(points.drop_duplicates("series"))
    ]
    legend_below(figure, handles, _notes(item, points))
    return figure


def _looks(points: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return how each series is drawn: its colour, marker and line."""
    looks = {}
    for index, row in enumerate(each_row(points.drop_duplicates("series"))):
        color = COLOURS[index % len(COLOURS)]
        marker = MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]
        look = {
            "color": color,
            "marker": marker,
            "markersize": 7,
            "linestyle": "-",
        }
        if row.role == CLAIM:
            look |= {"linestyle": "none", "markerfacecolor": "white"}
        elif row.role == LEVEL:
            look |= {"linestyle": "--", "marker": ""}
        looks[row.series] = look
    return looks


def _notes(item: Item, points: pd.DataFrame) -> str:
    """Return what stands below: what was measured, and what marks and bands are."""
    data = dict.fromkeys(f"{cell['dataset']} {cell['tested']}" for cell in item.cells)
    sentences = [
        f"Measured on {', '.join(data)}, {plural(span(points['seeds']), 'seed')}."
        " Bands and bars: 95 % t intervals over seeds; of one seed over its tasks or"
        " records.",
        "A hollow mark is a method as published, drawn at the ε that its paper claims.",
        "Its arrow ends at the proven ε; ∞: no finite ε is proven.",
        "Marks at one ε stand side by side. The axis has at least ε from 0.1 to 20.",
        *notice_sentences(points["label"], points["notices"]),
    ]
    return wrapped(dict.fromkeys(sentences), 130)


def _draw_panel(
    axes: Axes, points: pd.DataFrame, looks: Mapping[str, dict[str, Any]]
) -> None:
    claims = points[points["role"] == CLAIM]
    proven = points["epsilon_proven_high"]
    aside = _asides(points)
    low, high = finite_ends([*proven, *claims["epsilon_claimed"]], margin=1.5)
    low = min(low, _AXIS[0])
    high = max(high, _AXIS[1])
    edge = 1.35 * high
    curves = points.assign(
        x=proven * aside,
        value=points["accuracy"],
        low=points["accuracy_low"],
        high=points["accuracy_high"],
    )
    for series, curve in curves.drop(claims.index).groupby("series", sort=False):
        draw_curve(axes, curve.sort_values("x"), **looks[str(series)])
    for row in each_row(claims):
        _draw_claim(axes, row, edge, looks[row.series], aside[row.Index])
    axes.set_xscale("log")
    axes.set_xlim(low, edge * 1.25)
    set_log_axis(axes.xaxis)


def _asides(points: pd.DataFrame) -> pd.Series:
    """Return the factor by which each mark is drawn beside its ε.

    Marks of several series at one ε stand side by side, in the order of the series.
    """
    claimed = points["epsilon_claimed"].where(points["role"] == CLAIM)
    epsilons = claimed.fillna(points["epsilon_proven_high"])
    marks = points[np.isfinite(epsilons)]
    factors = pd.Series(1.0, points.index)
    for _, same in marks.groupby(epsilons[marks.index].map("{:.2g}".format)):
        series = same["series"].unique()
        steps = np.arange(len(series)) - (len(series) - 1) / 2
        factor = dict(zip(series, _ASIDE**steps, strict=True))
        factors[same.index] = same["series"].map(factor)
    return factors


def _draw_claim(
    axes: Axes, row: Any, edge: float, look: Mapping[str, Any], aside: float
) -> None:
    """Draw a hollow mark at the claimed ε, with an arrow to the proven one; without a
    claim, at the latter. The mark is drawn beside its ε by a factor.
    """
    end = min(row.epsilon_proven_high, edge)
    start = end * aside
    if not math.isnan(row.epsilon_claimed):
        start = min(row.epsilon_claimed, edge) * aside
    half = (row.accuracy_high - row.accuracy_low) / 2
    axes.errorbar(
        start,
        row.accuracy,
        half,
        capsize=2,
        **look,
    )
    if end != start / aside:
        arrow = {
            "arrowstyle": "-|>",
            "color": look["color"],
            "shrinkA": 5,
            "shrinkB": 0,
        }
        axes.annotate("", (end, row.accuracy), (start, row.accuracy), arrowprops=arrow)
    if math.isinf(row.epsilon_proven_high):
        axes.text(
            edge,
            row.accuracy,
            " ∞",
            va="center",
            color=look["color"],
        )
