"""The figure of privacy: three ε of each private configuration, in small multiples by
paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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

_EPSILONS = ["epsilon_claimed", "epsilon_proven_high", "epsilon_audited"]
_LOOKS: dict[str, dict[str, Any]] = {
    "claimed ε": {"marker": "o", "mfc": "none", "ms": 6.5},
    "proven ε (upper end)": {"marker": "s", "ms": 4.5},
    "no finite ε is proven": {"marker": ">", "ms": 6.5},
    "audit: ε is at least": {"marker": "|", "ms": 9, "mew": 2.2},
}
_CLAIMED, _PROVEN, _AUDITED = COLOURS[:3]
_WIDTH = 6.9
_PITCH = 0.185
_HEAD = 3.0
"""Inches: of a column of panels, and between two rows, enough for a label of two lines.
A panel's title and axis take as many rows as `_HEAD`.
"""
_NOTE = (
    "The first task of each table is shown; privacy.csv has all tasks. An audit of 0"
    " stands at the left edge."
)


@styled
def draw(table: pd.DataFrame, papers: Mapping[str, str] | None = None) -> Figure:
    """Draw small multiples by paper: a line for each configuration, with its three ε.

    All panels have the same axis of ε. A repair stands below what it repairs, marked by
    an arrow.

    Args:
        table: as `privacy.read`; those of `privacy.rows_of_figure` are drawn.
        papers: the papers' titles.
    """
    drawn = rows_of_figure(table)
    drawn["z"] = drawn["accounted_multiplier"].map("{:.3g}".format)
    panels = drawn.groupby("panel", sort=False)
    columns = _columns(panels.size() + _HEAD)
    longest = max(lengths.sum() for lengths in columns)
    figure = Figure(figsize=(_WIDTH * len(columns), 1.1 + _PITCH * longest))
    ends = finite_ends(drawn[_EPSILONS], margin=1.6)
    halves = figure.subfigures(1, len(columns), squeeze=False)[0]
    for half, lengths in zip(halves, columns, strict=True):
        ratios = list(lengths - _HEAD)
        axes_of_half = half.subplots(len(lengths), squeeze=False, height_ratios=ratios)
        for axes, paper in zip(axes_of_half[:, 0], lengths.index, strict=True):
            rows = panels.get_group(paper)
            _draw_panel(axes, rows, *ends)
            axes.set_title(_heading((papers or {}).get(paper, paper), rows), fontsize=9)
    figure.suptitle("Claimed, proven and audited ε", fontsize=11)
    handles = axes.get_legend_handles_labels()[0]
    legend_below(figure, handles, _NOTE, columns=4, size=8)
    return figure


def _columns(lengths: pd.Series) -> list[pd.Series]:
    """Divide papers into two columns of about the same length, in the papers' order;
    one column for one paper.
    """
    middles = lengths.cumsum() - lengths / 2
    is_left = middles <= lengths.sum() / 2
    return [column for column in (lengths[is_left], lengths[~is_left]) if len(column)]


def _heading(title: str, rows: pd.DataFrame) -> str:
    """Return a panel's title: paper, seeds, and every δ."""
    seeds = plural(span(rows["seeds"]), "seed")
    deltas = ", ".join(f"{delta:g}" for delta in sorted(rows["delta"].unique()))
    return f"{title}, {seeds}, δ = {deltas}"


def _draw_panel(axes: Axes, rows: pd.DataFrame, low: float, high: float) -> None:
    """Draw a line of three points for each row; an infinite ε is an arrow at the
    edge.
    """
    edge = high * 1.25
    count = len(rows)
    is_finite = np.isfinite(rows["epsilon_proven_high"])
    claimed, proven, audited = (rows[name].clip(low, edge) for name in _EPSILONS)
    ends = np.stack([claimed, proven])
    axes.hlines(
        range(count), np.nanmin(ends, 0), np.nanmax(ends, 0), color="#999999", zorder=1
    )
    marks = (
        (claimed, _CLAIMED),
        (proven.where(is_finite), _PROVEN),
        (proven.mask(is_finite), _PROVEN),
        (audited, _AUDITED),
    )
    for (name, look), (values, color) in zip(_LOOKS.items(), marks, strict=True):
        axes.plot(
            values, range(count), linestyle="none", label=name, color=color, **look
        )
    for y in range(0, count, 2):  # every other row on grey
        axes.axhspan(y - 0.5, y + 0.5, color="#f3f3f3", linewidth=0, zorder=0)
    axes.set_xscale("log")
    axes.set_xlim(low / 1.15, edge * 1.15)
    axes.set_ylim(count - 0.5, -0.5)
    set_log_axis(axes.xaxis)
    labels = [wrapped([_label(row, rows)], 64) for row in each_row(rows)]
    axes.set_yticks(range(count), labels, fontsize=7.2, linespacing=1.0)
    axes.set_xlabel("ε", fontsize=7.5, labelpad=1)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7.5, pad=1)


def _label(row: Any, rows: pd.DataFrame) -> str:
    """Return the label of a row: no more than tells it apart in its panel."""
    text = row.variant or "as published"
    if text == row.method or rows.loc[rows["variant"] == text, "method"].nunique() > 1:
        text = f"{row.method}: {'as published' if text == row.method else text}"
    namesakes = rows[rows["variant"] == row.variant]
    for name in ("unit", "observer", "dataset", "task", "z"):
        if namesakes[name].nunique() > 1:
            text += f", {name}: {getattr(row, name)}"
    if row.proven_status == "refuted":
        text += ", refuted by its audit"
    elif row.proven_excess:
        text += ", audited above"
    return f"\u21b3 {text}" if row.repaired else text
