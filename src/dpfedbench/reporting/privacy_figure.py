"""The figure of privacy: three epsilons and the accuracy of each private configuration,
in small multiples by paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from dpfedbench.reporting import values
from dpfedbench.reporting.look import (
    COLOURS,
    DPI,
    half_widths,
    legend_below,
    plain,
    tidied,
    wrapped,
)
from dpfedbench.reporting.privacy import Row, ordered, shown

_CLAIMED, _HOLDS, _AUDITED = COLOURS[0], COLOURS[1], COLOURS[2]
_MARKS: dict[str, dict[str, Any]] = {
    "ε as claimed": {
        "marker": "o",
        "ms": 6.5,
        "mec": _CLAIMED,
        "mew": 1.5,
        "mfc": "none",
    },
    "ε that holds (upper end)": {"marker": "s", "ms": 4.5, "color": _HOLDS},
    "no finite ε holds": {"marker": ">", "ms": 6.5, "color": _HOLDS},
    "audit: ε is at least": {"marker": "|", "ms": 9, "mew": 2.2, "color": _AUDITED},
    "audit: 0": {"marker": "<", "ms": 4.5, "mec": _AUDITED, "mfc": "none"},
    "accuracy": {"marker": "o", "ms": 5, "mec": _CLAIMED, "mfc": "none"},
    "accuracy of a repair (\u21b3)": {"marker": "o", "ms": 5, "color": _AUDITED},
}
"""The legend's; the marks of the panels have the same look."""
_PITCH, _HEAD = 0.185, 3.0
"""Inches between two rows, enough for a label of two lines; and how many rows a panel's
title and axis take.
"""


def draw(table: Sequence[Row], papers: Mapping[str, str] | None = None) -> Figure:
    """Small multiples by paper: a line for each configuration, with its three epsilons
    and beside them its accuracy.

    All panels have the same axis of epsilon. A repair stands below what it repairs,
    marked by an arrow.

    Args:
        table: what `privacy.read` gave; those that are `shown` are drawn.
        papers: the papers' titles.
    """
    panels: dict[str, list[Row]] = {}
    for row in ordered(shown(table)):
        panels.setdefault(_paper(row), []).append(row)
    columns = _columns({paper: len(rows) + _HEAD for paper, rows in panels.items()})
    lines = max(
        sum(len(panels[paper]) + _HEAD for paper in column) for column in columns
    )
    figure = Figure(figsize=(6.5 * len(columns), 1.1 + _PITCH * lines), dpi=DPI)
    figure.set_layout_engine(
        "constrained", w_pad=0.05, h_pad=0.03, wspace=0.02, hspace=0.02
    )
    ends = _ends([row for rows in panels.values() for row in rows])
    for half, column in zip(
        figure.subfigures(1, len(columns), squeeze=False)[0], columns, strict=True
    ):
        heights = [len(panels[paper]) for paper in column] or [1]
        pairs = half.subplots(
            len(heights), 2, squeeze=False, height_ratios=heights, width_ratios=(1.8, 1)
        )
        for (left, right), paper in zip(pairs, column, strict=False):
            _draw_epsilons(left, panels[paper], ends)
            _draw_accuracy(right, panels[paper])
            heading = _heading((papers or {}).get(paper, paper), panels[paper])
            left.set_title(
                " ", fontsize=9
            )  # room for the heading, which is over both halves and widens neither
            look: dict[str, Any] = {
                "textcoords": "offset points",
                "ha": "right",
                "fontsize": 9,
            }
            right.annotate(
                heading, (1, 1), (0, 4), "axes fraction", **look
            ).set_in_layout(False)
            for axes, label in ((left, "ε"), (right, "accuracy, %")):
                axes.set_xlabel(label, fontsize=7.5, labelpad=1)
    figure.suptitle(
        "ε as claimed, ε that holds, ε as audited; and accuracy", fontsize=11
    )
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


def _paper(row: Row) -> str:
    """The paper whose panel a row stands in: the one whose claim it repairs, or its
    own.
    """
    return next(
        (place.paper for place in row.entry.tables if place.repairs), row.entry.paper
    )


def _columns(lengths: Mapping[str, float]) -> list[list[str]]:
    """Papers in two columns of about the same length, each in the papers' order; one
    column for one paper.
    """
    columns: tuple[list[str], list[str]] = ([], [])
    for paper in sorted(lengths, key=lambda paper: -lengths[paper]):
        min(columns, key=lambda column: sum(map(lengths.__getitem__, column))).append(
            paper
        )
    return [
        [paper for paper in lengths if paper in column] for column in columns if column
    ] or [[]]


def _ends(rows: Sequence[Row]) -> tuple[float, float]:
    """The ends of the axis of epsilon, for the finite ones."""
    given = np.array(
        [
            (row.claimed.epsilon_high, row.holds.epsilon_high, row.audited)
            for row in rows
        ]
    ).reshape(-1, 3)
    positive = given[np.isfinite(given) & (given > 0)]
    return (
        (positive.min() / 1.6, positive.max() * 1.6) if len(positive) else (0.1, 10.0)
    )


def _heading(title: str, rows: Sequence[Row]) -> str:
    """A panel's title: paper, data and task where they are one, seeds, and the
    deltas.
    """
    data = list(dict.fromkeys(f"{row.entry.dataset} {row.entry.task}" for row in rows))
    seeds = values.plural(values.span(row.cell.seeds for row in rows), "seed")
    deltas = ", ".join(
        f"{delta:g}" for delta in sorted({row.holds.delta for row in rows})
    )
    return ", ".join([title, *data[: len(data) == 1], seeds, f"δ = {deltas}"])


def _draw_epsilons(axes: Axes, rows: Sequence[Row], ends: tuple[float, float]) -> None:
    """A line of three points for each row; an infinite epsilon is an arrow at the
    edge.
    """
    low, high = ends
    edge = high * 1.25

    def mark(name: str, x: float, place: int, zorder: int) -> None:
        axes.plot(x, place, linestyle="none", zorder=zorder, **_MARKS[name])

    for place, row in enumerate(rows):
        claimed, holds, audited = (
            row.claimed.epsilon_high,
            row.holds.epsilon_high,
            row.audited,
        )
        between = [
            min(value, edge) for value in (claimed, holds) if not math.isnan(value)
        ]
        if between:
            axes.plot(
                [min(between), max(between)],
                [place, place],
                color="#999999",
                linewidth=1.4,
                zorder=1,
            )
        mark("ε as claimed", min(claimed, edge), place, 3)
        if math.isinf(holds):
            mark("no finite ε holds", edge, place, 3)
        else:
            mark("ε that holds (upper end)", holds, place, 2)
        mark(
            "audit: ε is at least" if audited > 0 else "audit: 0",
            audited if audited > 0 else low,
            place,
            4,
        )
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


def _labels(rows: Sequence[Row]) -> list[str]:
    """What a panel's rows are called: no more than tells them apart."""
    data, units = (
        {(row.entry.dataset, row.entry.task) for row in rows},
        {row.holds.unit for row in rows},
    )
    texts = []
    for row in rows:
        entry = row.entry
        text = (
            entry.variant if entry.variant not in ("", entry.method) else "as published"
        )
        alike = {
            other.entry.method for other in rows if other.entry.variant == entry.variant
        }
        observers = {
            other.holds.observer for other in rows if other.entry.group == entry.group
        }
        text = (
            f"{entry.method}: {text}"
            if text == "as published" or len(alike) > 1
            else text
        )
        text += (
            f", {row.holds.unit}"
            if len(units) > 1 and row.holds.unit != "client"
            else ""
        )
        text += f", observer: {row.holds.observer}" if len(observers) > 1 else ""
        text += f" [{entry.dataset} {entry.task}]" if len(data) > 1 else ""
        if row.holds.audit:
            text += (
                ", refuted by its audit"
                if row.holds.status == "refuted"
                else ", audited above"
            )
        texts.append("\u21b3 " * entry.repaired + text)
    # Two tables may call theirs the same, and the points of a sweep are called alike.
    told = [
        (
            f"{text} [{row.entry.tables[0].item}]"
            if row.entry.tables
            else f"{text}, z = {row.noise_multiplier:.3g}"
        )
        for text, row in zip(texts, rows, strict=True)
    ]
    told = [
        longer if texts.count(text) > 1 else text
        for text, longer in zip(texts, told, strict=True)
    ]
    return [wrapped([text], 64) for text in told]


def _tidied_panel(axes: Axes, count: int) -> None:
    """The look of both halves of a panel: every other line on grey, first row on
    top.
    """
    for place in range(0, count, 2):
        axes.axhspan(place - 0.5, place + 0.5, color="#f3f3f3", linewidth=0, zorder=0)
    axes.set_ylim(count - 0.5, -0.5)
    tidied(axes, ("top", "right", "left"), axis="x")
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7.5, pad=1)


def _draw_accuracy(axes: Axes, rows: Sequence[Row]) -> None:
    """Accuracy with its interval: repairs filled, all else hollow."""
    for place, row in enumerate(rows):
        interval, repaired = row.cell.accuracy, row.entry.repaired
        colour = _AUDITED if repaired else _CLAIMED
        look: dict[str, Any] = {
            "mec": colour,
            "mfc": colour if repaired else "white",
            "ecolor": colour,
        }
        look |= {"fmt": "o", "ms": 5, "elinewidth": 1, "capsize": 2}
        axes.errorbar(
            interval.mean, place, xerr=half_widths(interval), zorder=3, **look
        )
    low, high = axes.get_xlim()
    axes.set_xlim(max(0.0, low), min(100.0, high))
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    _tidied_panel(axes, len(rows))
