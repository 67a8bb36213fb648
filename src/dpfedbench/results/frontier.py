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
from matplotlib.ticker import FixedLocator, NullLocator

from dpfedbench.evaluation.intervals import Interval
from dpfedbench.results.figure_style import (
    COLOURS,
    DPI,
    MARKERS,
    half_widths,
    legend_below,
    plain,
    tidied,
    wrapped,
)
from dpfedbench.results.formats import (
    Listing,
    format_accuracy,
    format_number,
    format_range,
    format_text,
    notice_sentences,
    plural,
    span,
)
from dpfedbench.results.items import Item
from dpfedbench.results.summary import each_row, read_rows, row_interval

CURVE = "curve"
CLAIM = "claim"
LEVEL = "level"


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
    curves = points[points["role"] == CURVE].groupby(["series", "unit"])
    moves = curves["epsilon_proven_high"].nunique() > 1
    series_that_move = {series for series, _ in moves[moves].index}
    is_shown = [
        row.role != CURVE
        or moves[row.series, row.unit]
        or row.series not in series_that_move
        for row in each_row(points)
    ]
    points = points[is_shown]
    order = points["role"].map([CURVE, CLAIM, LEVEL].index)  # in the legend, too
    return points.loc[order.sort_values(kind="stable").index].reset_index(drop=True)


def tidy(points: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each point: its place, what it claims, what is proven, and its
    accuracy with a 95 % interval.

    `epsilon_asked` is the swept value, empty where nothing is swept; `epsilon_proven`
    the upper end, inf for none.
    """
    names = {
        "dataset": "dataset",
        "tested": "task",
        **{name: name for name in ("series", "label", "method", "role", "unit")},
        "delta": "delta",
        "x": "epsilon_asked",
        "epsilon_claimed": "epsilon_claimed",
        "epsilon_proven_low": "epsilon_proven_low",
        "epsilon_proven_high": "epsilon_proven",
        "accuracy": "value",
        "accuracy_low": "low",
        "accuracy_high": "high",
        "seeds": "seeds",
    }
    return points[list(names)].rename(columns=names)


def listing(table: pd.DataFrame) -> Listing:
    """Return all frontiers, as `tidy` or as read from CSV, for readers."""
    rows = []
    for row in each_row(table.fillna({"unit": ""})):
        interval = Interval(
            mean=row.value, low=row.low, high=row.high, count=0, over=""
        )
        rows.append(
            {
                "method": format_text(row.label),
                "data": format_text(row.dataset),
                "task": format_text(row.task),
                "role": format_text(row.role),
                "accuracy, %": format_accuracy(interval),
                "claimed ε": format_number(row.epsilon_claimed),
                "proven ε": format_range(row.epsilon_proven_low, row.epsilon_proven),
                "unit": format_text(row.unit),
                "δ": format_number(row.delta, "g"),
                "seeds": format_number(row.seeds, "d"),
            }
        )
    return Listing(
        title="The frontier: accuracy over the proven ε", rows=rows, notes=_NOTES
    )


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


def make(item: Item, results: str | Path) -> tuple[Figure, pd.DataFrame]:
    """Read a frontier's runs and draw it: the figure, and its numbers as `tidy`."""
    points = read(item, results)
    return draw(item, points), tidy(points)


def draw(item: Item, points: pd.DataFrame) -> Figure:
    """Draw a panel for each unit, the ones with curves wider; one legend below."""
    with_curves = set(points.loc[points["role"] == CURVE, "unit"])
    units = list(points.loc[points["role"] != LEVEL, "unit"].unique()) or [""]
    units.sort(key=lambda unit: unit not in with_curves)
    ratios = [1.0 if unit in with_curves else 0.45 for unit in units]
    figure = Figure(
        figsize=(4.2 + 4.2 * sum(ratios), 6.2), dpi=DPI, layout="constrained"
    )
    panels = figure.subplots(
        1, len(units), sharey=True, squeeze=False, width_ratios=ratios
    )[0]
    styles = {
        series: (
            COLOURS[index % len(COLOURS)],
            MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
        )
        for index, series in enumerate(points["series"].unique())
    }
    for axes, unit in zip(panels, units, strict=True):
        of_unit = points[(points["unit"] == unit) | (points["role"] == LEVEL)]
        _draw_panel(axes, of_unit, unit, styles)
        axes.set_xlabel(f"{item.spec['x']['label']}{axes.get_xlabel()}", fontsize=10)
    panels[0].set_ylabel(item.spec["y"]["label"], fontsize=10)
    figure.suptitle(item.title, fontsize=12)
    firsts = points.drop_duplicates("series")
    handles = [_legend_entry(row, styles) for row in each_row(firsts)]
    legend_below(figure, handles, _notes(item, points), columns=3, size=9)
    return figure


def _legend_entry(row: Any, styles: Mapping[str, tuple[str, str]]) -> Line2D:
    colour, marker = styles[row.series]
    look: dict[str, Any] = {
        "linestyle": {CURVE: "-", LEVEL: "--", CLAIM: "none"}[row.role],
        "color": colour,
        "marker": "" if row.role == LEVEL else marker,
        "mfc": "none" if row.role == CLAIM else colour,
    }
    return Line2D([], [], ms=7, label=row.label, **look)


def _notes(item: Item, points: pd.DataFrame) -> str:
    """Return what stands below: what was measured, and what marks and bands are."""
    data = dict.fromkeys(f"{cell['dataset']} {cell['tested']}" for cell in item.cells)
    seeds = plural(span(points["seeds"]), "seed")
    over = set(points["interval_over"])
    of_one_seed = f"the tested {' or '.join(sorted(over - {'seeds'}))} of one seed"
    if over == {"seeds"}:
        bands = "seeds"
    elif "seeds" in over:
        bands = f"seeds, or over {of_one_seed} where only one seed was run"
    else:
        bands = of_one_seed
    sentences = [
        f"Measured on {', '.join(data)}, {seeds}. Bands and bars: 95 % t intervals"
        f" over {bands}.",
        "A hollow mark is a method as published, drawn at the ε that its paper claims.",
        "Its arrow ends at the proven ε; ∞: no finite ε is proven.",
        *notice_sentences(zip(points["label"], points["notices"], strict=True)),
    ]
    return wrapped(dict.fromkeys(sentences), 130)


def _draw_panel(
    axes: Axes,
    points: pd.DataFrame,
    unit: str,
    styles: Mapping[str, tuple[str, str]],
) -> None:
    low, high = _ends(points)
    edge = high * 1.35
    for series in points["series"].unique():
        of_series = points[points["series"] == series]
        colour, marker = styles[series]
        curve = of_series[of_series["role"] == CURVE]
        _draw_line(axes, curve.sort_values("epsilon_proven_high"), colour, marker)
        for row in each_row(of_series):
            if row.role == LEVEL:
                look: dict[str, Any] = {"color": colour, "linestyle": "--", "lw": 1.6}
                axes.axhline(row.accuracy, zorder=1, **look)
            elif row.role == CLAIM:
                size = 8 + 7 * _count_above(row, points)
                _draw_claim(axes, row, edge, colour, marker, size=size)
    axes.set_xscale("log")
    axes.set_xlim(low, edge * 1.25)
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in range(-6, 11)]))
    axes.xaxis.set_major_formatter(plain)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=9.5)
    tidied(axes)
    deltas = sorted(points.loc[points["role"] != LEVEL, "delta"].unique())
    if unit:
        text = " or ".join(f"{delta:g}" for delta in deltas)
        axes.set_xlabel(f" of a {unit},\nδ = {text}")


def _ends(points: pd.DataFrame) -> tuple[float, float]:
    """Return the ends of the axis of ε, for the finite ones."""
    claims = points.loc[points["role"] == CLAIM, "epsilon_claimed"]
    values = pd.concat([points["epsilon_proven_high"], claims])
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return 0.5, 8.0
    return values.min() / 1.5, values.max() * 1.5


def _draw_line(axes: Axes, curve: pd.DataFrame, colour: str, marker: str) -> None:
    if not len(curve):
        return
    xs = curve["epsilon_proven_high"]
    axes.plot(xs, curve["accuracy"], color=colour, marker=marker, lw=2, zorder=3)
    axes.fill_between(
        xs,
        curve["accuracy_low"],
        curve["accuracy_high"],
        color=colour,
        alpha=0.15,
        linewidth=0,
    )


def _count_above(row: Any, points: pd.DataFrame) -> int:
    """Return how many later claims are drawn over this one: a mark is larger by that,
    so that its rim stays visible.
    """
    later = points.loc[row.Index + 1 :]
    near = later[
        (later["role"] == CLAIM)
        & (later["series"] != row.series)
        & np.isclose(later["accuracy"], row.accuracy, rtol=0, atol=1.5)
    ]
    return sum(
        math.isclose(epsilon, row.epsilon_claimed, rel_tol=0.1)
        for epsilon in near["epsilon_claimed"]
    )


def _draw_claim(
    axes: Axes, row: Any, edge: float, colour: str, marker: str, size: float
) -> None:
    """Draw a hollow mark at the claimed ε, with an arrow to the proven one; without a
    claim, at the latter.
    """
    is_finite = math.isfinite(row.epsilon_proven_high)
    end = min(row.epsilon_proven_high, edge)
    start = end
    if not math.isnan(row.epsilon_claimed):
        start = min(row.epsilon_claimed, edge)
    look: dict[str, Any] = {"mec": colour, "mfc": "white", "ecolor": colour}
    look |= {"ms": size, "mew": 1.6, "capsize": 2, "elinewidth": 1, "zorder": 4}
    interval = half_widths(row_interval(row))
    axes.errorbar(start, row.accuracy, yerr=interval, fmt=marker, **look)
    if end != start:
        arrow = {"color": colour, "arrowstyle": "-|>", "linewidth": 1.6}
        arrow |= {"shrinkA": 5, "shrinkB": 0}
        axes.annotate(
            "",
            (end, row.accuracy),
            (start, row.accuracy),
            zorder=3 if is_finite else 2.5,  # the longest lie below
            arrowprops=arrow,
        )
    if not is_finite:
        look = {"va": "center", "color": colour, "fontsize": 12}
        axes.annotate(
            "∞", (edge, row.accuracy), (3, 0), textcoords="offset points", **look
        )
