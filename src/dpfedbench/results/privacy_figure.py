"""The figure of privacy: three ε and the accuracy of each private configuration, in
small multiples by paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from dpfedbench.results.figure_style import (
    COLOURS,
    DPI,
    half_widths,
    legend_below,
    plain,
    tidied,
    wrapped,
)
from dpfedbench.results.formats import plural, span
from dpfedbench.results.privacy import rows_of_figure
from dpfedbench.results.summary import each_row, row_interval

_CLAIMED = COLOURS[0]
_HOLDS = COLOURS[1]
_AUDITED = COLOURS[2]
_MARKS: dict[str, dict[str, Any]] = {
    "claimed ε": {
        "marker": "o",
        "ms": 6.5,
        "mec": _CLAIMED,
        "mew": 1.5,
        "mfc": "none",
    },
    "proven ε (upper end)": {"marker": "s", "ms": 4.5, "color": _HOLDS},
    "no finite ε is proven": {"marker": ">", "ms": 6.5, "color": _HOLDS},
    "audit: ε is at least": {"marker": "|", "ms": 9, "mew": 2.2, "color": _AUDITED},
    "audit: 0": {"marker": "<", "ms": 4.5, "mec": _AUDITED, "mfc": "none"},
    "accuracy": {"marker": "o", "ms": 5, "mec": _CLAIMED, "mfc": "none"},
    "accuracy of a repair (\u21b3)": {"marker": "o", "ms": 5, "color": _AUDITED},
}
"""The legend's; the marks of the panels have the same look."""
_PITCH = 0.185
_HEAD = 3.0
"""Inches between two rows, enough for a label of two lines; and how many rows a panel's
title and axis take.
"""


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
    drawn["panel"] = [_paper(row) for row in each_row(drawn)]
    panels = {str(paper): rows for paper, rows in drawn.groupby("panel", sort=False)}
    lengths = {paper: len(rows) + _HEAD for paper, rows in panels.items()}
    columns = _columns(lengths)
    lines = max(sum(lengths[paper] for paper in column) for column in columns)
    figure = Figure(figsize=(6.5 * len(columns), 1.1 + _PITCH * lines), dpi=DPI)
    figure.set_layout_engine(
        "constrained", w_pad=0.05, h_pad=0.03, wspace=0.02, hspace=0.02
    )
    ends = _ends(drawn)
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
            _draw_heading(left, right, _heading((papers or {}).get(paper, paper), rows))
    figure.suptitle("Claimed, proven and audited ε; and accuracy", fontsize=11)
    handles = [
        Line2D([], [], linestyle="none", label=label, **look)
        for label, look in _MARKS.items()
    ]
    notes = (
        "The first task of each table is shown; privacy.csv has all tasks. Bars: 95 %"
        " intervals of accuracy."
    )
    legend_below(figure, handles, notes, columns=7, size=8)
    return figure


def _paper(row: Any) -> str:
    """Return the paper whose panel a row stands in: the one whose claim it repairs, or
    its own.
    """
    repaired = [paper for paper, _, _, repairs in row.shown_in if repairs]
    return str([*repaired, row.paper][0])


def _columns(lengths: Mapping[str, float]) -> list[list[str]]:
    """Divide papers into two columns of about the same length, each in the papers'
    order; one column for one paper.
    """
    columns: tuple[list[str], list[str]] = ([], [])
    for paper in sorted(lengths, key=lambda paper: -lengths[paper]):
        shorter = min(columns, key=lambda column: sum(lengths[name] for name in column))
        shorter.append(paper)
    filled = [
        [paper for paper in lengths if paper in column] for column in columns if column
    ]
    return filled or [[]]


def _ends(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the ends of the axis of ε, for the finite ones."""
    names = ["epsilon_claimed", "epsilon_proven_high", "epsilon_audited"]
    values = rows[names].to_numpy(float)
    positive = values[np.isfinite(values) & (values > 0)]
    if not len(positive):
        return 0.1, 10.0
    return positive.min() / 1.6, positive.max() * 1.6


def _heading(title: str, rows: pd.DataFrame) -> str:
    """Return a panel's title: paper, data and task where they are one, seeds, and every
    δ.
    """
    data = list(dict.fromkeys(rows["dataset"] + " " + rows["task"]))
    seeds = plural(span(rows["seeds"]), "seed")
    deltas = ", ".join(f"{delta:g}" for delta in sorted(rows["delta"].unique()))
    return ", ".join([title, *data[: len(data) == 1], seeds, f"δ = {deltas}"])


def _draw_heading(left: Axes, right: Axes, heading: str) -> None:
    # The heading is over both halves and widens neither; an empty title makes room.
    left.set_title(" ", fontsize=9)
    look: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "right",
        "fontsize": 9,
    }
    text = right.annotate(heading, (1, 1), (0, 4), "axes fraction", **look)
    text.set_in_layout(False)
    left.set_xlabel("ε", fontsize=7.5, labelpad=1)
    right.set_xlabel("accuracy, %", fontsize=7.5, labelpad=1)


def _draw_epsilons(axes: Axes, rows: pd.DataFrame, ends: tuple[float, float]) -> None:
    """Draw a line of three points for each row; an infinite ε is an arrow at the
    edge.
    """
    low, high = ends
    edge = high * 1.25

    def mark(name: str, x: float, y: int, zorder: int) -> None:
        axes.plot(x, y, linestyle="none", zorder=zorder, **_MARKS[name])

    for y, row in enumerate(each_row(rows)):
        claimed = row.epsilon_claimed
        proven = row.epsilon_proven_high
        known = [min(end, edge) for end in (claimed, proven) if not math.isnan(end)]
        if known:
            look: dict[str, Any] = {"color": "#999999", "linewidth": 1.4, "zorder": 1}
            axes.plot([min(known), max(known)], [y, y], **look)
        mark("claimed ε", min(claimed, edge), y, 3)
        if math.isinf(proven):
            mark("no finite ε is proven", edge, y, 3)
        else:
            mark("proven ε (upper end)", proven, y, 2)
        if row.epsilon_audited > 0:
            mark("audit: ε is at least", row.epsilon_audited, y, 4)
        elif row.epsilon_audited == 0:
            mark("audit: 0", low, y, 4)
    axes.set_xscale("log")
    axes.set_xlim(low / 1.15, edge * 1.15)
    steps = (1, 3) if edge / low < 3e3 else (1,)  # as many as there is room for
    axes.xaxis.set_major_locator(
        FixedLocator([step * 10.0**power for power in range(-4, 5) for step in steps])
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(plain)
    axes.set_yticks(range(len(rows)), _labels(rows), fontsize=7.2, linespacing=1.0)
    _tidied_panel(axes, len(rows))


def _labels(rows: pd.DataFrame) -> list[str]:
    """Return the labels of a panel's rows: no more than tells them apart."""
    texts = [_label(row, rows) for row in each_row(rows)]
    labels = []
    for text, row in zip(texts, each_row(rows), strict=True):
        label = text
        # Two tables may call theirs the same, and points of a sweep are called alike.
        if texts.count(text) > 1 and row.shown_in:
            label = f"{text} [{row.shown_in[0][1]}]"
        elif texts.count(text) > 1:
            label = f"{text}, z = {row.accounted_multiplier:.3g}"
        labels.append(wrapped([label], 64))
    return labels


def _label(row: Any, rows: pd.DataFrame) -> str:
    text = row.variant
    if text in ("", row.method):
        text = "as published"
    namesakes = rows.loc[rows["variant"] == row.variant, "method"]
    if text == "as published" or namesakes.nunique() > 1:
        text = f"{row.method}: {text}"
    if rows["unit"].nunique() > 1 and row.unit != "client":
        text += f", {row.unit}"
    if rows.loc[rows["folder"] == row.folder, "observer"].nunique() > 1:
        text += f", observer: {row.observer}"
    if len(rows[["dataset", "task"]].drop_duplicates()) > 1:
        text += f" [{row.dataset} {row.task}]"
    if row.proven_excess:
        is_refuted = row.proven_status == "refuted"
        text += ", refuted by its audit" if is_refuted else ", audited above"
    return f"\u21b3 {text}" if row.repaired else text


def _tidied_panel(axes: Axes, count: int) -> None:
    """Set the look of both halves of a panel: every other line on grey, first row on
    top.
    """
    for y in range(0, count, 2):
        axes.axhspan(y - 0.5, y + 0.5, color="#f3f3f3", linewidth=0, zorder=0)
    axes.set_ylim(count - 0.5, -0.5)
    tidied(axes, ("top", "right", "left"), axis="x")
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7.5, pad=1)


def _draw_accuracy(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw accuracy with its interval: repairs filled, all others hollow."""
    for y, row in enumerate(each_row(rows)):
        colour = _AUDITED if row.repaired else _CLAIMED
        look: dict[str, Any] = {
            "mec": colour,
            "mfc": colour if row.repaired else "white",
            "ecolor": colour,
        }
        look |= {"fmt": "o", "ms": 5, "elinewidth": 1, "capsize": 2}
        interval = row_interval(row)
        axes.errorbar(interval.mean, y, xerr=half_widths(interval), zorder=3, **look)
    low, high = axes.get_xlim()
    axes.set_xlim(max(0.0, low), min(100.0, high))
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    _tidied_panel(axes, len(rows))
