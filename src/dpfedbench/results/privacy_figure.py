"""The figure of privacy: three ε of each private configuration, in small multiples by
paper.
"""

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
from dpfedbench.results.privacy import rows_of_figure
from dpfedbench.results.summary import each_row

_EPSILONS = ["epsilon_claimed", "epsilon_proven_high", "epsilon_audited"]
_CLAIMED, _PROVEN, _AUDITED = COLOURS[:3]
_LOOKS: dict[str, dict[str, Any]] = {
    "claimed ε": {
        "marker": "o",
        "color": _CLAIMED,
        "mfc": "none",
        "ms": 6.5,
    },
    "proven ε (upper end)": {
        "marker": "s",
        "color": _PROVEN,
        "ms": 4.5,
    },
    "no finite ε is proven": {
        "marker": ">",
        "color": _PROVEN,
        "ms": 6.5,
    },
    "audit: ε is at least": {
        "marker": "|",
        "color": _AUDITED,
        "ms": 9,
        "mew": 2.2,
    },
}
_PITCH = 0.2
_HEAD = 1.7
"""Inches between two rows, enough for a label of two lines; and how many rows a panel's
title takes.
"""
_NOTE = (
    "Each mechanism is drawn once; privacy.csv has every task. An audit of 0 stands at"
    " the left edge."
)


@styled
def draw(table: pd.DataFrame, papers: Mapping[str, str]) -> Figure:
    """Draw small multiples by paper: a line for each configuration, with its three ε.

    All panels have the same axis of ε.

    Args:
        table: as `privacy.explain`; rows of `privacy.rows_of_figure` are drawn.
        papers: the papers' titles; a paper without one keeps its name.
    """
    drawn = rows_of_figure(table)
    drawn["z"] = drawn["accounted_multiplier"].map("{:.3g}".format)
    panels = {str(paper): rows for paper, rows in drawn.groupby("paper", sort=False)}
    lines = len(drawn) + _HEAD * len(panels)
    figure = Figure(figsize=(8, 1.1 + _PITCH * lines))
    ratios = [len(rows) for rows in panels.values()]
    column = figure.subplots(
        len(panels), sharex=True, squeeze=False, height_ratios=ratios
    )[:, 0]
    low, high = finite_ends(drawn[_EPSILONS], margin=1.6)
    edge = high * 1.25
    for axes, (paper, rows) in zip(column, panels.items(), strict=True):
        _draw_panel(axes, rows, low, edge)
        deltas = ", ".join(f"{delta:g}" for delta in sorted(rows["delta"].unique()))
        title = papers.get(paper, paper)
        axes.set_title(f"{title}, δ = {deltas}", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(low / 1.15, edge * 1.15)
    axes.set_xlabel("ε")
    set_log_axis(axes.xaxis)
    figure.suptitle("Claimed, proven and audited ε", fontsize=11)
    handles = axes.get_legend_handles_labels()[0]
    legend_below(figure, handles, _NOTE)
    return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, low: float, edge: float) -> None:
    """Draw a line of three points for each row; an infinite ε is an arrow at the
    edge.
    """
    ys = range(len(rows))
    claimed, proven, audited = (rows[name].clip(low, edge) for name in _EPSILONS)
    is_finite = np.isfinite(rows["epsilon_proven_high"])
    axes.hlines(
        ys,
        claimed.fillna(proven),
        proven,
        color="#999999",
        zorder=1,
    )
    marks = (claimed, proven.where(is_finite), proven.mask(is_finite), audited)
    for (name, look), values in zip(_LOOKS.items(), marks, strict=True):
        axes.plot(
            values,
            ys,
            linestyle="none",
            label=name,
            **look,
        )
    labels = [wrapped([_label(row, rows)], 64) for row in each_row(rows)]
    axes.set_yticks(
        ys,
        labels,
        fontsize=7.5,
        linespacing=1.0,
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _label(row: Any, rows: pd.DataFrame) -> str:
    """Return the label of a row: no more than tells it apart in its panel."""
    text = row.variant or "as published"
    if rows.loc[rows["variant"] == text, "method"].nunique() > 1:
        text = f"{row.method}: {text}"
    namesakes = rows[rows["variant"] == row.variant]
    for name in ("unit", "observer", "z"):
        if namesakes[name].nunique() > 1:
            text += f", {name}: {getattr(row, name)}"
    if row.proven_status == "refuted":
        text += ", refuted by its audit"
    elif row.proven_excess:
        text += ", audited above"
    if row.repaired:
        text += " (repaired)"
    return text
