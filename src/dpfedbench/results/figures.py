"""Figures of a paper, each with a table of its numbers."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dpfedbench.results import frontier
from dpfedbench.results.curves import (
    account_points,
    each_curve,
    history_points,
    published_points,
    sweep_points,
)
from dpfedbench.results.figure_style import (
    COLOURS,
    DPI,
    MARKERS,
    draw_curve,
    legend_below,
    set_log_axis,
    styled,
    wrapped,
)
from dpfedbench.results.formats import format_number, notice_sentences, plural
from dpfedbench.results.items import Item
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import each_row, read_rows
from dpfedbench.results.table_columns import csv_columns

PUBLISHED = "#000000"
STILL = 0.001
"""Curves that move by no more than this share of their value are drawn as level."""
WIDTH = 5.6
HEIGHT = 3.7
"""Inches: of a figure, and of what stands above its legend."""


@styled
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
        points = frontier.read(item, results)
        return frontier.draw(item, points), csv_columns(points, "frontier")
    rows = pd.DataFrame()
    if item.kind == "account":
        points = account_points(item)
    else:
        rows = read_rows(results, item.cells)
        if item.kind == "sweep":
            points = sweep_points(item, rows)
        else:
            points = history_points(item, rows, results)
    points = points.assign(source="measured")
    printed = read_published(published, item.paper, item.name)
    if item.spec["x"].get("show", "value") != "value":  # printed over the swept value
        printed = printed[printed["x"].isna()]
    figure = draw(item, points, printed, _notes(item, rows, points, printed))
    numbers = [
        csv_columns(frame, "figure").astype(object)
        for frame in (points, published_points(item, printed))
    ]
    return figure, pd.concat(numbers, ignore_index=True).infer_objects()


def draw(item: Item, points: pd.DataFrame, printed: pd.DataFrame, notes: str) -> Figure:
    """Draw the curves with their bands, and the published numbers: those with an x are
    marks, the others level lines.

    The item's spec gives title, labels and scales; the notes stand in small print
    below.
    """
    figure = Figure(figsize=(WIDTH, HEIGHT))
    axes = figure.add_subplot()
    has_marks = item.kind == "sweep" or "key" in item.spec["x"]
    for index, curve in enumerate(each_curve(points)):
        first = curve.iloc[0]
        if item.kind == "sweep":  # the curves of a series have one colour
            index = int(first["number"])
        marker = ""
        if has_marks:
            marker = MARKERS[index % len(MARKERS)]
        linestyle = "-"
        if first["is_dashed"]:
            linestyle = "--"
        draw_curve(
            axes,
            curve,
            marker,
            color=COLOURS[index % len(COLOURS)],
            linestyle=linestyle,
            # Each thinner than the one below it, so that curves that coincide are seen.
            linewidth=max(1.4, 3.4 - 0.9 * index),
            label=first["label"],
        )
    for number in each_row(printed):
        _draw_published(axes, number, is_comparable=not item.unique("mismatch"))
    axes.margins(x=0.08, y=0.12)
    values = points["value"]
    if item.kind == "history" and np.ptp(values) <= STILL * values.min():
        axes.set_ylim(0.98 * values.min(), 1.02 * values.max())
    _set_axes(axes, item, points)
    axes.set_ylabel(wrapped([item.spec["y"]["label"]], 40))
    axes.set_title(wrapped([item.title], 56))
    handles = axes.get_legend_handles_labels()[0]
    legend = legend_below(figure, handles, notes)
    figure.set_figheight(HEIGHT + legend.get_window_extent().height / DPI)
    return figure


def _set_axes(axes: Axes, item: Item, points: pd.DataFrame) -> None:
    x = item.spec["x"]
    axes.set_xlabel(x["label"])
    axes.set_xscale(x.get("scale", "linear"))
    axes.set_yscale(item.spec["y"].get("scale", "linear"))
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            set_log_axis(axis)
    if item.kind == "account" or x.get("column") == "round":
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
    elif item.kind == "sweep" and x.get("show", "value") == "value":
        swept = sorted(points["x"].dropna().unique())
        axes.set_xticks(swept, [f"{x:g}" for x in swept])
        axes.minorticks_off()


def _draw_published(axes: Axes, number: Any, *, is_comparable: bool) -> None:
    """Draw a published number: filled where ours may be compared with it, hollow and so
    labelled where not.
    """
    label = f"published: {number.value:g} ({number.variant})"
    if not is_comparable:
        label += ", not comparable"
    look: dict[str, Any] = {"color": PUBLISHED, "label": label}
    if math.isnan(number.x):
        axes.axhline(
            number.value,
            linestyle=":",
            linewidth=1.2,
            **look,
        )
        return
    face = PUBLISHED if is_comparable else "none"
    axes.plot(
        number.x,
        number.value,
        "*",
        ms=12,
        mfc=face,
        **look,
    )


_ACCOUNT_NOTE = (
    "Accounting only, nothing was trained: every point is at the scale that axis and"
    " title name."
)
_NO_DELTA_NOTE = "δ = 1: the clipping threshold reads raw norms, so no smaller δ holds."


def _notes(
    item: Item, rows: pd.DataFrame, points: pd.DataFrame, printed: pd.DataFrame
) -> str:
    """Return what stands below a figure: data, task, seeds, bands, and why a published
    number is not comparable.
    """
    if item.kind == "account":
        sentences = [_ACCOUNT_NOTE]
        if (points.groupby("series")["value"].min() == 1).any():
            sentences.append(_NO_DELTA_NOTE)
        return wrapped(sentences)
    sentences = [_measured_note(item, rows)]
    if item.kind == "sweep":
        sentences += _epsilon_notes(rows, points)
    if len(printed):
        sentences += [f"Not comparable: {text}." for text in item.unique("mismatch")]
    return wrapped([*sentences, *notice_sentences(rows["label"], rows["notices"])])


def _measured_note(item: Item, rows: pd.DataFrame) -> str:
    tested = rows.groupby("dataset", sort=False)["tested"].unique()
    data = ", ".join(f"{name} {', '.join(tasks)}" for name, tasks in tested.items())
    note = f"Measured on {data}, {plural(rows['seeds'].max(), 'seed')}."
    if item.kind == "sweep":
        unit = rows["test_unit"].iloc[0]
        return (
            f"{note} Bands: 95 % t intervals over seeds; of one seed over its {unit}s."
        )
    if rows["seeds"].max() > 1:
        note += " Lines: means over seeds. Bands, unless named: lowest to highest seed."
    return note


def _epsilon_notes(rows: pd.DataFrame, points: pd.DataFrame) -> Iterator[str]:
    """Yield the ε of each line of a sweep, in the order of its points, and their δ."""
    deltas = sorted({f"{delta:g}" for delta in rows["delta"].dropna()})
    if deltas:
        yield f"ε at δ = {', '.join(deltas)}."
    points = points.drop_duplicates(["series", "x"])  # not of each curve of a series
    for label, curve in points.groupby("label", sort=False):
        if (curve["unit"] == "").all():
            yield f"{label}: claims no privacy."
            continue
        pairs = []
        for row in each_row(curve):
            claimed = format_number(row.epsilon_claimed, note=row.claimed_note)
            proven = format_number(row.epsilon_proven_high, note=row.proven_note)
            pairs.append(f"{claimed.line} / {proven.line}")
        texts = ", ".join(dict.fromkeys(pairs))
        yield f"{label}: claimed ε / proven ε = {texts}."
