"""The figure of privacy: three ε and the accuracy of each private configuration, in
small multiples by paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpfedbench.results.figure_style import (
    COLOURS,
    finite_ends,
    legend_below,
    set_log_axis,
    styled,
    wrapped,
)
from dpfedbench.results.formats import plural, span
from dpfedbench.results.privacy import rows_of_figure
from dpfedbench.results.summary import each_row

_CLAIMED, _PROVEN, _AUDITED = COLOURS[:3]
_MARKS: dict[str, dict[str, Any]] = {
    "claimed ε": {"marker": "o", "color": _CLAIMED, "mfc": "none", "ms": 6.5},
    "proven ε (upper end)": {"marker": "s", "color": _PROVEN, "ms": 4.5},
    "no finite ε is proven": {"marker": ">", "color": _PROVEN, "ms": 6.5},
    "audit: ε is at least": {"marker": "|", "color": _AUDITED, "ms": 9, "mew": 2.2},
    "accuracy": {"marker": "o", "color": _CLAIMED, "mfc": "white", "ms": 5},
    "accuracy of a repair (\u21b3)": {"marker": "o", "color": _AUDITED, "ms": 5},
}
"""The legend's; the marks of the panels have the same look."""
_PITCH = 0.185
_HEAD = 3.0
"""Inches between two rows, enough for a label of two lines; and how many rows a panel's
title and axis take.
"""
_NOTE = (
    "The first task of each table is shown; privacy.csv has all tasks. Bars: 95 %"
    " intervals of accuracy. An audit of 0 stands at the left edge."
)


@styled
def draw(table: pd.DataFrame, papers: Mapping[str, str] | None = None) -> Figure:
    """Draw small multiples by paper: a line for each configuration, with its three ε
    and beside them its accuracy.

    All panels have the same axis of ε. A repair stands below what it repairs, marked by
    an arrow.

    Args:
        table: as `privacy.read`; those of `privacy.rows_of_figure` are drawn.
        papers: the papers' titles.
    """
    drawn = rows_of_figure(table)
    drawn["z"] = drawn["accounted_multiplier"].map("{:.3g}".format)
    panels = {str(paper): rows for paper, rows in drawn.groupby("panel", sort=False)}
    lengths = {paper: len(rows) + _HEAD for paper, rows in panels.items()}
    columns = _columns(lengths)
    lines = [sum(lengths[paper] for paper in column) for column in columns]
    figure = Figure(figsize=(6.5 * len(columns), 1.1 + _PITCH * max(lines)))
    ends = finite_ends(
        drawn[["epsilon_claimed", "epsilon_proven_high", "epsilon_audited"]], margin=1.6
    )
    halves = figure.subfigures(1, len(columns), squeeze=False)[0]
    for half, column in zip(halves, columns, strict=True):
        heights = [len(panels[paper]) for paper in column] or [1]
        pairs = half.subplots(
            len(heights), 2, squeeze=False, height_ratios=heights, width_ratios=(1.8, 1)
        )
        for (left, right), paper in zip(pairs, column, strict=False):
            rows = panels[paper]
            _draw_epsilons(left, rows, ends)
            _draw_accuracy(right, rows)
            left.set_title(_heading((papers or {}).get(paper, paper), rows), fontsize=9)
    figure.suptitle("Claimed, proven and audited ε; and accuracy", fontsize=11)
    handles = [Line2D([], [], ls="none", label=name, **_MARKS[name]) for name in _MARKS]
    legend_below(figure, handles, _NOTE, columns=6, size=8)
    return figure


def _columns(lengths: Mapping[str, float]) -> list[list[str]]:
    """Divide papers into two columns of about the same length, each in the papers'
    order; one column for one paper.
    """
    columns: tuple[list[str], list[str]] = ([], [])
    for paper in sorted(lengths, key=lambda paper: -lengths[paper]):
        shorter = min(columns, key=lambda column: sum(lengths[name] for name in column))
        shorter.append(paper)
    order = list(lengths).index
    return [sorted(column, key=order) for column in columns if column] or [[]]


def _heading(title: str, rows: pd.DataFrame) -> str:
    """Return a panel's title: paper, seeds, and every δ."""
    seeds = plural(span(rows["seeds"]), "seed")
    deltas = ", ".join(f"{delta:g}" for delta in sorted(rows["delta"].unique()))
    return f"{title}, {seeds}, δ = {deltas}"


def _draw_epsilons(axes: Axes, rows: pd.DataFrame, ends: tuple[float, float]) -> None:
    """Draw a line of three points for each row; an infinite ε is an arrow at the
    edge.
    """
    low, high = ends
    edge = high * 1.25

    def mark(name: str, x: float, y: int) -> None:
        axes.plot(min(max(x, low), edge), y, linestyle="none", **_MARKS[name])

    for y, row in enumerate(each_row(rows)):
        known = pd.Series([row.epsilon_claimed, row.epsilon_proven_high]).dropna()
        axes.hlines(y, *known.clip(upper=edge).agg(["min", "max"]), color="#999999")
        mark("claimed ε", row.epsilon_claimed, y)
        is_finite = math.isfinite(row.epsilon_proven_high)
        name = "proven ε (upper end)" if is_finite else "no finite ε is proven"
        mark(name, row.epsilon_proven_high, y)
        mark("audit: ε is at least", row.epsilon_audited, y)
    axes.set_xscale("log")
    axes.set_xlim(low / 1.15, edge * 1.15)
    set_log_axis(axes.xaxis)
    labels = [wrapped([_label(row, rows)], 64) for row in each_row(rows)]
    axes.set_yticks(range(len(rows)), labels, fontsize=7.2, linespacing=1.0)
    _set_panel(axes, len(rows), "ε")


def _label(row: Any, rows: pd.DataFrame) -> str:
    """Return the label of a row: no more than tells it apart in its panel."""
    text = row.variant or "as published"
    if text == row.method or rows.loc[rows["variant"] == text, "method"].nunique() > 1:
        text = f"{row.method}: {'as published' if text == row.method else text}"
    namesakes = rows[rows["variant"] == row.variant]
    for name in ("unit", "observer", "dataset", "task", "z"):
        if namesakes[name].nunique() > 1:
            text += f", {name}: {getattr(row, name)}"
    if row.proven_excess:
        is_refuted = row.proven_status == "refuted"
        text += ", refuted by its audit" if is_refuted else ", audited above"
    return f"\u21b3 {text}" if row.repaired else text


def _set_panel(axes: Axes, count: int, label: str) -> None:
    """Set the look of both halves of a panel: every other line on grey, first row on
    top.
    """
    for y in range(0, count, 2):
        axes.axhspan(y - 0.5, y + 0.5, color="#f3f3f3", linewidth=0, zorder=0)
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7.5, pad=1)
    axes.set_xlabel(label, fontsize=7.5, labelpad=1)


def _draw_accuracy(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw accuracy with its interval: repairs filled, all others hollow."""
    for y, row in enumerate(each_row(rows)):
        look = _MARKS["accuracy of a repair (\u21b3)" if row.repaired else "accuracy"]
        half = (row.accuracy_high - row.accuracy_low) / 2
        axes.errorbar(row.accuracy, y, xerr=half, elinewidth=1, capsize=2, **look)
    low, high = axes.get_xlim()
    axes.set_xlim(max(0.0, low), min(100.0, high))
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=4)
    _set_panel(axes, len(rows), "accuracy, %")
