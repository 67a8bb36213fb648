"""Figures, each with a table of its numbers: accuracy over a swept value, or quantities
over the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter, MaxNLocator

from dpfedbench.reporting import frontier, values
from dpfedbench.reporting.described import Item
from dpfedbench.reporting.lines import Line, account_lines, history_lines, sweep_lines
from dpfedbench.reporting.look import (
    COLOURS,
    DPI,
    MARKERS,
    SIGNS,
    legend_below,
    plain,
    tidied,
    wrapped,
)
from dpfedbench.reporting.results import (
    CellResult,
    Published,
    attributed_notices,
    read_cell,
    read_published,
)

PUBLISHED = "#000000"
WIDTH, HEIGHT = 5.6, 3.7
"""Inches: of a figure, and of what stands above its legend."""
ROW = 0.14
"""Inches of a row of ε above a figure."""
STILL = 0.001
"""Lines that move by no more than this share of their value are drawn as level."""


class _MinorDecimals(LogFormatter):
    """Labels of a log axis between its powers of ten, as plain decimals."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def draw(
    item: Item, lines: Sequence[Line], published: Sequence[Published], notes: str
) -> Figure:
    """Draw the lines with their bands, and the published numbers: those with an x are
    points, the others level lines.

    The item's spec gives title, labels and scales; the notes stand in small print
    below.
    """
    spec = item.spec
    noted = sum(bool(line.notes) for line in lines)
    figure = Figure(
        figsize=(WIDTH, HEIGHT + 2 * noted * ROW), dpi=DPI, layout="constrained"
    )
    axes = figure.add_subplot()
    sweep, over_epsilon = (
        item.kind == "sweep" or "key" in spec["x"],
        spec["x"].get("show", "value") != "value",
    )
    for index, line in enumerate(lines):
        _draw_line(axes, line, index, marked=sweep)
    for number in published:
        _draw_published(axes, number, comparable=not item.mismatches)
    axes.set_xscale(spec["x"].get("scale", "linear"))
    axes.set_yscale(spec["y"].get("scale", "linear"))
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_formatter(plain)
            axis.set_minor_formatter(_MinorDecimals(minor_thresholds=(2, 0.4)))
    if axes.get_yscale() == "linear":
        axes.ticklabel_format(
            axis="y", useOffset=False
        )  # numbers as they are, also where they hardly differ
    swept = sorted({x for line in lines if line.x is not None for x in line.x.tolist()})
    # Counts of clients, in figures of accounts, are too long to stand at each value.
    if item.kind == "sweep" and 0 < len(swept) <= 12 and not over_epsilon:
        axes.set_xticks(swept, [f"{x:g}" for x in swept])
        axes.minorticks_off()
    if spec["x"].get("column") == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.14 if noted else 0.08 if sweep else 0.02, y=0.12)
    if item.kind == "account":
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel(spec["x"]["label"])
    axes.set_ylabel(wrapped([spec["y"]["label"]], 40))
    axes.set_title(wrapped([spec["title"]], 56), fontsize=11, pad=6 + 144 * noted * ROW)
    _draw_notes(axes, lines)
    if item.kind == "history" and (still := _still(lines)):
        low, high = still
        axes.set_ylim(low - high / 50, high + high / 50)
        said = f"Nothing moves: all values lie\nbetween {low:#.7g} and {high:#.7g}."
        axes.text(0.5, 0.25, said, ha="center", transform=axes.transAxes)
    tidied(axes, color="#d9d9d9")
    legend = legend_below(
        figure, axes.get_legend_handles_labels()[0], notes, columns=3, size=8
    )
    figure.set_figheight(
        figure.get_figheight() + legend.get_window_extent().height / DPI
    )
    return figure


def _draw_line(axes: Axes, line: Line, index: int, *, marked: bool) -> None:
    colour = COLOURS[index % len(COLOURS)]
    dashes = "--" if line.dashed else "-"
    # Each thinner than the one below it, so that lines that coincide are all seen.
    width = max(1.4, 3.4 - 0.9 * index)
    if line.x is None:
        axes.axhline(
            line.value[0],
            color=colour,
            linestyle=dashes,
            linewidth=width,
            label=line.label,
        )
        if math.isfinite(line.low[0]):
            axes.axhspan(
                line.low[0], line.high[0], color=colour, alpha=0.15, linewidth=0
            )
        return
    marker = MARKERS[index % len(MARKERS)] if marked else None
    finite = np.isfinite(line.x)
    axes.plot(
        line.x[finite],
        line.value[finite],
        color=colour,
        linestyle=dashes,
        linewidth=width,
        marker=marker,
        markersize=3 + 2 * width,
        label=line.label,
    )
    if finite.sum() == 1 and np.isfinite(line.low[finite]).all():
        low, value, high = (
            given[finite] for given in (line.low, line.value, line.high)
        )
        axes.errorbar(
            line.x[finite],
            value,
            yerr=[value - low, high - value],
            fmt="none",
            ecolor=colour,
            capsize=3,
        )
    elif np.isfinite(line.low).any():
        axes.fill_between(
            line.x[finite],
            line.low[finite],
            line.high[finite],
            color=colour,
            alpha=0.2,
            linewidth=0,
        )


def _draw_notes(axes: Axes, lines: Sequence[Line]) -> None:
    """Rows of ε above the axes, where no curve is: for each line one as claimed and one
    that holds, at their x.
    """
    row, above = 0, axes.get_xaxis_transform()
    for index, line in reversed(list(enumerate(lines))):
        for place, which in (
            ((1, "ε that holds"), (0, "ε claimed")) if line.notes else ()
        ):
            colour, height = COLOURS[index % len(COLOURS)], 4 + 72 * ROW * row
            look: dict[str, Any] = {
                "textcoords": "offset points",
                "color": colour,
                "fontsize": 7.5,
            }
            epsilons = [note[place] for note in line.notes]
            shown = [
                values.words(each.text) if each.key == math.inf else each
                for each in epsilons
            ]
            status, name = (
                {each.note for each in shown},
                f"{SIGNS[index % len(SIGNS)]} {which}",
            )
            if len(status) == 1 and (common := status.pop()):  # said once
                name, shown = (
                    f"{name} ({common})",
                    [values.words(each.text) for each in shown],
                )
            axes.annotate(
                name, (0, 1), (-4, height), "axes fraction", ha="right", **look
            )
            for x, each in zip(
                line.x if line.x is not None else (), shown, strict=True
            ):
                axes.annotate(
                    each.line, (x, 1), (0, height), above, ha="center", **look
                )
            row += 1


def _still(lines: Sequence[Line]) -> tuple[float, float] | None:
    """The least and the largest value of positive lines that hardly move, None for
    others.
    """
    drawn_values = np.concatenate([line.value for line in lines])
    low, high = float(drawn_values.min()), float(drawn_values.max())
    return (low, high) if high > 0 and high - low <= STILL * high else None


def _draw_published(axes: Axes, number: Published, *, comparable: bool) -> None:
    """Filled where ours may be read against it, hollow and so labelled where not."""
    label = f"published: {number.value:g} ({number.variant})" + (
        "" if comparable else ", not comparable"
    )
    if number.x is None:
        axes.axhline(
            number.value, color=PUBLISHED, linestyle=":", linewidth=1.2, label=label
        )
    else:
        face = PUBLISHED if comparable else "none"
        axes.plot(
            number.x,
            number.value,
            "*",
            ms=12,
            mec=PUBLISHED,
            mfc=face,
            linestyle="none",
            label=label,
        )


def make(
    item: Item, results: str | Path, published: str | Path
) -> tuple[Figure, pd.DataFrame]:
    """Read a figure's runs and draw it: the figure, and a table of what it shows
    (`drawn`).
    """
    if item.kind == "frontier":
        return frontier.make(item, results)
    cells = [
        read_cell(results, cell.folders, cell.metrics)
        for cell in item.cells
        if item.kind != "account"
    ]
    numbers = read_published(published, item.paper, item.name)
    if item.spec["x"].get("show", "value") != "value":
        numbers = [
            number for number in numbers if number.x is None
        ]  # printed over the swept value
    if item.kind == "account":
        lines = account_lines(item)
    else:
        lines = (
            sweep_lines(item, cells)
            if item.kind == "sweep"
            else history_lines(item, results, cells)
        )
    return draw(item, lines, numbers, _notes(item, cells, lines, numbers)), drawn(
        item, lines, numbers
    )


def _notes(
    item: Item,
    cells: Sequence[CellResult],
    lines: Sequence[Line],
    published: Sequence[Published],
) -> str:
    """What stands below a figure: data, task, seeds, bands, and why a published number
    is not comparable.
    """
    if item.kind == "account":
        said = [
            "Accounting only, nothing was trained: every point is at the scale that"
            " axis and title name."
        ]
        if any((line.value == 1).all() for line in lines):
            said.append(
                "δ = 1: the clipping threshold reads raw norms, so no smaller δ holds."
            )
        return wrapped(said)
    tested: dict[str, dict[str, None]] = {}
    for cell in item.cells:
        tested.setdefault(cell.dataset, {})[cell.tested] = None
    data = ", ".join(f"{name} {', '.join(tasks)}" for name, tasks in tested.items())
    seeds = max(cell.seeds for cell in cells)
    said = [f"Measured on {data}, {values.plural(seeds, 'seed')}."]
    if item.kind == "sweep":
        over = (
            "seeds"
            if cells[0].accuracy.over == "seeds"
            else f"the {cells[0].counted}s of one seed"
        )
        said[0] += f" Bands: 95 % t intervals over {over}."
    elif seeds > 1:
        said[0] += (
            " Lines: means over seeds. Bands, unless named: lowest to highest seed."
        )
    if item.spec["x"].get("show", "value") != "value":
        deltas = sorted({f"{cell.delta:g}" for cell in cells if cell.delta is not None})
        said.append(
            f"ε at δ = {', '.join(deltas)}." if deltas else "No line claims privacy."
        )
        for line in lines:
            if line.x is not None and (without := int((~np.isfinite(line.x)).sum())):
                said.append(
                    f"{line.label}: no finite ε for {values.plural(without, 'point')},"
                    " which the CSV has."
                )
            elif line.x is None:
                said.append(f"{line.label}: claims no privacy.")
    if any(line.notes for line in lines):
        delta = next(cell.delta for cell in cells if cell.delta is not None)
        said.append(f"Above the points: their ε, at δ = {delta:g}.")
    if published:
        said += [f"Not comparable: {text}." for text in item.mismatches]
    said += attributed_notices(
        [(cell.label, result) for cell, result in zip(item.cells, cells, strict=True)]
    )
    return wrapped(said)


def drawn(
    item: Item, lines: Sequence[Line], published: Sequence[Published]
) -> pd.DataFrame:
    """The numbers of a figure, one row a point; `source` is "measured" or where a paper
    prints it.

    The ε are the upper ends at the end of the training, at δ; empty where no privacy is
    claimed.
    """
    columns = [
        "dataset",
        "task",
        "series",
        "curve",
        "label",
        "x",
        "value",
        "low",
        "high",
    ]
    columns += ["epsilon_claimed", "epsilon_holds", "delta", "unit", "source"]
    of_series = {
        cell.series: (cell.dataset, cell.task) for cell in reversed(item.cells)
    }
    nothing, records = (math.nan, math.nan, None, None), list[tuple[object, ...]]()
    for line in lines:
        count = len(line.value)
        xs = [math.nan] * count if line.x is None else line.x
        privacy = [
            (cell.claimed.epsilon_high, cell.holds.epsilon_high, cell.delta, cell.unit)
            for cell in line.cells
        ]
        privacy = privacy if len(privacy) == count else (privacy or [nothing]) * count
        for x, value, low, high, of in zip(
            xs, line.value, line.low, line.high, privacy, strict=True
        ):
            place = (*of_series[line.series], line.series, line.curve, line.label)
            records.append((*place, x, value, low, high, *of, "measured"))
    first = item.cells[0]
    for number in published:
        place = (
            first.published_dataset,
            first.task,
            "published",
            "accuracy",
            number.variant,
        )
        at = (
            math.nan if number.x is None else number.x,
            number.value,
            math.nan,
            math.nan,
        )
        records.append((*place, *at, *nothing, f"{item.paper}, {number.source}"))
    return pd.DataFrame(records, columns=columns)
