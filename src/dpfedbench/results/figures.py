"""Figures of a paper, each with a table of its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter, MaxNLocator

from dpfedbench.results import frontier
from dpfedbench.results.curves import (
    COLUMNS,
    account_points,
    finite,
    has_no_delta,
    history_points,
    is_level,
    is_still,
    published_points,
    sweep_points,
)
from dpfedbench.results.figure_style import (
    COLOURS,
    DPI,
    MARKERS,
    SIGNS,
    legend_below,
    plain,
    tidied,
    wrapped,
)
from dpfedbench.results.formats import notice_sentences, plural
from dpfedbench.results.items import Item
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import each_row, read_rows

PUBLISHED = "#000000"
WIDTH = 5.6
HEIGHT = 3.7
"""Inches: of a figure, and of what stands above its legend."""
ROW = 0.14
"""Inches of a row of ε above a figure."""
STILL = 0.001
"""Curves that move by no more than this share of their value are drawn as level."""


class _MinorDecimals(LogFormatter):
    """Labels of a log axis between its powers of ten, as plain decimals."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def make(
    item: Item, results: str | Path, published: str | Path
) -> tuple[Figure, pd.DataFrame]:
    """Read a figure's runs and draw it.

    Returns:
        The figure, and one row for each point that it draws; `source` is "measured" or
        where a paper prints it. Each ε is the upper end after training, at δ; empty
        where no privacy is claimed.

    Raises:
        BenchError: a file of a run is missing or damaged.
    """
    if item.kind == "frontier":
        return frontier.make(item, results)
    if item.kind == "account":
        rows = pd.DataFrame()
        points = account_points(item)
    else:
        rows = read_rows(results, item.cells)
        if item.kind == "sweep":
            points = sweep_points(item, rows)
        else:
            points = history_points(item, rows, results)
    printed = read_published(published, item.paper, item.name)
    if _is_over_epsilon(item):  # printed over the swept value
        printed = printed[printed["x"].isna()]
    figure = draw(item, points, printed, _notes(item, rows, points, printed))
    measured = points[COLUMNS]
    if not len(printed):
        return figure, measured
    numbers = pd.concat(
        [measured.astype(object), published_points(item, printed).astype(object)],
        ignore_index=True,
    )
    return figure, numbers.infer_objects()


def _is_over_epsilon(item: Item) -> bool:
    return bool(item.spec["x"].get("show", "value") != "value")


def _curves(points: pd.DataFrame) -> list[pd.DataFrame]:
    keys = ["series", "curve", "label"]
    return [curve for _, curve in points.groupby(keys, sort=False)]


def draw(item: Item, points: pd.DataFrame, printed: pd.DataFrame, notes: str) -> Figure:
    """Draw the curves with their bands, and the published numbers: those with an x are
    marks, the others level lines.

    The item's spec gives title, labels and scales; the notes stand in small print
    below.
    """
    curves = _curves(points)
    epsilon_rows = 2 * sum(curve["shows_epsilons"].any() for curve in curves)
    figure = Figure(
        figsize=(WIDTH, HEIGHT + epsilon_rows * ROW), dpi=DPI, layout="constrained"
    )
    axes = figure.add_subplot()
    has_marks = item.kind == "sweep" or "key" in item.spec["x"]
    for index, curve in enumerate(curves):
        _draw_curve(axes, curve, index, has_marks=has_marks)
    is_comparable = not item.unique("mismatch")
    for number in each_row(printed):
        _draw_published(axes, number, is_comparable=is_comparable)
    _set_scales(axes, item)
    _set_ticks(axes, item, points)
    margin = 0.08 if has_marks else 0.02
    axes.margins(x=0.14 if epsilon_rows else margin, y=0.12)
    axes.set_xlabel(item.spec["x"]["label"])
    axes.set_ylabel(wrapped([item.spec["y"]["label"]], 40))
    axes.set_title(
        wrapped([item.title], 56), fontsize=11, pad=6 + 72 * epsilon_rows * ROW
    )
    _draw_epsilons(axes, curves)
    if item.kind == "history" and is_still(points, STILL):
        low = points["value"].min()
        high = points["value"].max()
        axes.set_ylim(low - high / 50, high + high / 50)
        text = f"Nothing moves: all values lie\nbetween {low:#.7g} and {high:#.7g}."
        axes.text(0.5, 0.25, text, ha="center", transform=axes.transAxes)
    tidied(axes, color="#d9d9d9")
    handles = axes.get_legend_handles_labels()[0]
    legend = legend_below(figure, handles, notes, columns=3, size=8)
    height = figure.get_figheight() + legend.get_window_extent().height / DPI
    figure.set_figheight(height)
    return figure


def _set_scales(axes: Axes, item: Item) -> None:
    axes.set_xscale(item.spec["x"].get("scale", "linear"))
    axes.set_yscale(item.spec["y"].get("scale", "linear"))
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_formatter(plain)
            axis.set_minor_formatter(_MinorDecimals(minor_thresholds=(2, 0.4)))
    if axes.get_yscale() == "linear":
        # Numbers as they are, also where they hardly differ.
        axes.ticklabel_format(axis="y", useOffset=False)


def _set_ticks(axes: Axes, item: Item, points: pd.DataFrame) -> None:
    swept = sorted(points["x"].dropna().unique())
    if item.kind == "sweep" and 0 < len(swept) <= 12 and not _is_over_epsilon(item):
        axes.set_xticks(swept, [f"{x:g}" for x in swept])
        axes.minorticks_off()
    if item.spec["x"].get("column") == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if item.kind == "account":
        # Counts of clients are too long to stand at each value.
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _draw_curve(
    axes: Axes, curve: pd.DataFrame, index: int, *, has_marks: bool
) -> None:
    first = curve.iloc[0]
    look: dict[str, Any] = {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": "--" if first["is_dashed"] else "-",
        # Each thinner than the one below it, so that curves that coincide are all seen.
        "linewidth": max(1.4, 3.4 - 0.9 * index),
        "label": first["label"],
    }
    band: dict[str, Any] = {"color": look["color"], "linewidth": 0}
    if is_level(curve):
        axes.axhline(first["value"], **look)
        if math.isfinite(first["low"]):
            axes.axhspan(first["low"], first["high"], alpha=0.15, **band)
        return
    shown = finite(curve)
    xs = shown["x"].to_numpy(float)
    ys = shown["value"].to_numpy(float)
    low = shown["low"].to_numpy(float)
    high = shown["high"].to_numpy(float)
    marker = MARKERS[index % len(MARKERS)] if has_marks else None
    axes.plot(xs, ys, marker=marker, markersize=3 + 2 * look["linewidth"], **look)
    if len(shown) == 1 and np.isfinite(low).all():
        axes.errorbar(
            *(xs, ys),
            yerr=[ys - low, high - ys],
            fmt="none",
            ecolor=look["color"],
            capsize=3,
        )
    elif np.isfinite(curve["low"].to_numpy(float)).any():
        axes.fill_between(xs, low, high, alpha=0.2, **band)


def _draw_epsilons(axes: Axes, curves: list[pd.DataFrame]) -> None:
    """Write rows of ε above the axes, where no curve is: for each curve one as claimed
    and one proven, at their x.
    """
    number = 0
    above_axes = axes.get_xaxis_transform()
    for index, curve in reversed(list(enumerate(curves))):
        if not curve["shows_epsilons"].any():
            continue
        sign = SIGNS[index % len(SIGNS)]
        for heading, column in (
            ("proven ε", "proven_text"),
            ("claimed ε", "claimed_text"),
        ):
            look: dict[str, Any] = {
                "textcoords": "offset points",
                "color": COLOURS[index % len(COLOURS)],
                "fontsize": 7.5,
            }
            height = 4 + 72 * ROW * number
            name = f"{sign} {heading}"
            # The status of an infinite ε is not shown; one that all have is shown once.
            statuses = {
                "" if value.key == math.inf else value.note for value in curve[column]
            }
            texts = [
                value.text if value.key == math.inf else value.line
                for value in curve[column]
            ]
            if len(statuses) == 1 and "" not in statuses:
                name = f"{name} ({statuses.pop()})"
                texts = [value.text for value in curve[column]]
            axes.annotate(
                name, (0, 1), (-4, height), "axes fraction", ha="right", **look
            )
            for x, text in zip(curve["x"], texts, strict=True):
                axes.annotate(
                    text, (x, 1), (0, height), above_axes, ha="center", **look
                )
            number += 1


def _draw_published(axes: Axes, number: Any, *, is_comparable: bool) -> None:
    """Draw a published number: filled where ours may be compared with it, hollow and so
    labelled where not.
    """
    label = f"published: {number.value:g} ({number.variant})"
    if not is_comparable:
        label += ", not comparable"
    if math.isnan(number.x):
        axes.axhline(
            number.value, color=PUBLISHED, linestyle=":", linewidth=1.2, label=label
        )
        return
    face = PUBLISHED if is_comparable else "none"
    look: dict[str, Any] = {"ms": 12, "mec": PUBLISHED, "mfc": face}
    axes.plot(number.x, number.value, "*", linestyle="none", label=label, **look)


def _notes(
    item: Item, rows: pd.DataFrame, points: pd.DataFrame, printed: pd.DataFrame
) -> str:
    """Return what stands below a figure: data, task, seeds, bands, and why a published
    number is not comparable.
    """
    if item.kind == "account":
        return wrapped(_account_notes(points))
    sentences = [_measured_note(item, rows)]
    if _is_over_epsilon(item):
        sentences += _epsilon_notes(rows, points)
    if points["shows_epsilons"].any():
        delta = rows["delta"].dropna().iloc[0]
        sentences.append(f"Above the points: their ε, at δ = {delta:g}.")
    if len(printed):
        sentences += [f"Not comparable: {text}." for text in item.unique("mismatch")]
    sentences += notice_sentences(zip(rows["label"], rows["notices"], strict=True))
    return wrapped(sentences)


def _account_notes(points: pd.DataFrame) -> Iterator[str]:
    yield (
        "Accounting only, nothing was trained: every point is at the scale that axis"
        " and title name."
    )
    if any(has_no_delta(curve) for curve in _curves(points)):
        yield "δ = 1: the clipping threshold reads raw norms, so no smaller δ holds."


def _measured_note(item: Item, rows: pd.DataFrame) -> str:
    tested: dict[str, dict[str, None]] = {}
    for row in each_row(rows):
        tested.setdefault(row.dataset, {})[row.tested] = None
    data = ", ".join(f"{name} {', '.join(tasks)}" for name, tasks in tested.items())
    seeds = rows["seeds"].max()
    note = f"Measured on {data}, {plural(seeds, 'seed')}."
    if item.kind == "sweep":
        first = rows.iloc[0]
        over = f"the {first['test_unit']}s of one seed"
        if first["interval_over"] == "seeds":
            over = "seeds"
        return f"{note} Bands: 95 % t intervals over {over}."
    if seeds > 1:
        return (
            f"{note} Lines: means over seeds. Bands, unless named: lowest to highest"
            " seed."
        )
    return note


def _epsilon_notes(rows: pd.DataFrame, points: pd.DataFrame) -> Iterator[str]:
    deltas = sorted({f"{delta:g}" for delta in rows["delta"].dropna()})
    yield f"ε at δ = {', '.join(deltas)}." if deltas else "No line claims privacy."
    for curve in _curves(points):
        label = curve["label"].iloc[0]
        without = len(curve) - len(finite(curve))
        if is_level(curve):
            yield f"{label}: claims no privacy."
        elif without:
            yield (
                f"{label}: no finite ε for {plural(without, 'point')}, which the CSV"
                " has."
            )
