"""The frontier of a data set and task: accuracy over the proven ε, of all methods and
repairs.

The role of a cell follows from its run and its account, never from a name: without
privacy it is a level line; a swept cell with a finite proven ε is a point of its
series' curve; any other is a claim, a mark at the claimed ε and an arrow to the proven
one. What protects clients and what protects records stand in panels of their own, since
their ε are not of the same thing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

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
from dpfedbench.results.summary import each_row, read_rows
from dpfedbench.results.table_columns import csv_columns, listing_of

CURVE = "curve"
CLAIM = "claim"
LEVEL = "level"
_ROLES = [CURVE, CLAIM, LEVEL]
TITLE = "The frontier: accuracy over the proven ε"

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
    is. Of several seeds the worst account counts.

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
    return points[is_shown].sort_values(  # roles have an order in the legend, too
        "role",
        key=lambda roles: roles.map(_ROLES.index),
        kind="stable",
        ignore_index=True,
    )


def tidy(points: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each point: its place, what it claims, what is proven, and its
    accuracy with a 95 % interval.

    `epsilon_asked` is the swept value, empty where nothing is swept; `epsilon_proven`
    the upper end, inf for none.
    """
    return csv_columns(points, "frontier")


def listing(table: pd.DataFrame) -> Listing:
    """Return all frontiers, as `tidy` or as read from CSV, for readers."""
    rows = table.fillna({"unit": ""})
    return listing_of(rows, "frontiers", title=TITLE, notes=_NOTES)


def make(item: Item, results: str | Path) -> tuple[Figure, pd.DataFrame]:
    """Read a frontier's runs and draw it: the figure, and its numbers as `tidy`."""
    points = read(item, results)
    return draw(item, points), tidy(points)


@styled
def draw(item: Item, points: pd.DataFrame) -> Figure:
    """Draw a panel for each unit, the ones with curves wider; one legend below."""
    private = points[points["role"] != LEVEL]
    with_curves = set(private.loc[private["role"] == CURVE, "unit"])
    units = sorted(private["unit"].unique(), key=lambda unit: unit not in with_curves)
    units = units or [""]
    ratios = [1.0 if unit in with_curves else 0.45 for unit in units]
    figure = Figure(figsize=(4.2 + 4.2 * sum(ratios), 6.2))
    panels = figure.subplots(
        1, len(units), sharey=True, squeeze=False, width_ratios=ratios
    )[0]
    looks = _looks(points)
    for axes, unit in zip(panels, units, strict=True):
        of_unit = points[points["unit"].isin([unit, ""])]
        deltas = " or ".join(
            f"{delta:g}" for delta in sorted(of_unit["delta"].dropna().unique())
        )
        _draw_panel(axes, of_unit, looks)
        label = item.spec["x"]["label"]
        axes.set_xlabel(f"{label} of a {unit},\nδ = {deltas}" if unit else label)
    panels[0].set_ylabel(item.spec["y"]["label"])
    figure.suptitle(item.title)
    handles = [
        Line2D([], [], label=row.label, **looks[row.series])
        for row in each_row(points.drop_duplicates("series"))
    ]
    legend_below(figure, handles, _notes(item, points), columns=3, size=9)
    return figure


def _looks(points: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return how each series is drawn: its colour, marker and line."""
    looks = {}
    for index, row in enumerate(each_row(points.drop_duplicates("series"))):
        colour = COLOURS[index % len(COLOURS)]
        turns = index + index // len(COLOURS)
        looks[row.series] = {
            "color": colour,
            "marker": "" if row.role == LEVEL else MARKERS[turns % len(MARKERS)],
            "linestyle": {CURVE: "-", LEVEL: "--", CLAIM: "none"}[row.role],
            "markerfacecolor": "white" if row.role == CLAIM else colour,
            "markersize": 7,
        }
    return looks


def _notes(item: Item, points: pd.DataFrame) -> str:
    """Return what stands below: what was measured, and what marks and bands are."""
    data = dict.fromkeys(f"{cell['dataset']} {cell['tested']}" for cell in item.cells)
    kinds = sorted(set(points["interval_over"]) - {"seeds"})
    over = f"seeds, of one seed over its {' or '.join(kinds)}" if kinds else "seeds"
    sentences = [
        f"Measured on {', '.join(data)}, {plural(span(points['seeds']), 'seed')}."
        f" Bands and bars: 95 % t intervals over {over}.",
        "A hollow mark is a method as published, drawn at the ε that its paper claims.",
        "Its arrow ends at the proven ε; ∞: no finite ε is proven.",
        *notice_sentences(points["label"], points["notices"]),
    ]
    return wrapped(dict.fromkeys(sentences), 130)


def _draw_panel(
    axes: Axes, points: pd.DataFrame, looks: Mapping[str, dict[str, Any]]
) -> None:
    claimed = points.loc[points["role"] == CLAIM, "epsilon_claimed"]
    low, high = finite_ends([*points["epsilon_proven_high"], *claimed], margin=1.5)
    edge = 1.35 * high
    curves = points.assign(
        value=points["accuracy"],
        low=points["accuracy_low"],
        high=points["accuracy_high"],
        x=points["epsilon_proven_high"],
    )
    # No band around levels.
    curves.loc[curves["role"] == LEVEL, ["low", "high"]] = math.nan
    for series, curve in curves[curves["role"] != CLAIM].groupby("series", sort=False):
        draw_curve(axes, curve.sort_values("x"), **looks[str(series)])
    claims = points[points["role"] == CLAIM]
    for number, row in enumerate(each_row(claims), 1):
        # Each smaller than the one below it, so that all rims at one place are seen.
        size = 7 + 2 * (len(claims) - number)
        _draw_claim(axes, row, edge, looks[row.series] | {"markersize": size})
    axes.set_xscale("log")
    axes.set_xlim(low, edge * 1.25)
    set_log_axis(axes.xaxis)


def _draw_claim(axes: Axes, row: Any, edge: float, look: Mapping[str, Any]) -> None:
    """Draw a hollow mark at the claimed ε, with an arrow to the proven one; without a
    claim, at the latter.
    """
    end = min(row.epsilon_proven_high, edge)
    start = end if math.isnan(row.epsilon_claimed) else min(row.epsilon_claimed, edge)
    half = (row.accuracy_high - row.accuracy_low) / 2
    axes.errorbar(start, row.accuracy, half, **{**look, "linestyle": "none"}, capsize=2)
    if end != start:
        arrow = {
            "color": look["color"],
            "arrowstyle": "-|>",
            "shrinkA": 5,
            "shrinkB": 0,
        }
        axes.annotate("", (end, row.accuracy), (start, row.accuracy), arrowprops=arrow)
    if math.isinf(row.epsilon_proven_high):
        axes.text(edge, row.accuracy, " ∞", va="center", color=look["color"])
