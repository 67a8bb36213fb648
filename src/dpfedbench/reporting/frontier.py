"""The frontier of a data set and task: accuracy over the epsilon that holds, of all
methods and repairs.

What a cell is follows from its run and its account, never from a name: without privacy
it is a level line; a swept cell with a finite epsilon that holds is a point of its
series' curve; any other is a claim, a mark at the epsilon that it claims and an arrow
to the one that holds. What protects clients and what protects records stand in panels
of their own, since their epsilons are not of the same thing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from dpfedbench.evaluation.intervals import Interval
from dpfedbench.reporting import values
from dpfedbench.reporting.described import Cell, Item
from dpfedbench.reporting.look import (
    COLOURS,
    DPI,
    MARKERS,
    half_widths,
    legend_below,
    plain,
    tidied,
    wrapped,
)
from dpfedbench.reporting.results import (
    CellResult,
    attributed_notices,
    read_cell,
    worst_epsilon,
)
from dpfedbench.reporting.values import Listing
from dpsum.accounting.profiles import Entry

CURVE, CLAIM, LEVEL = "curve", "claim", "level"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A cell and one unit that it protects; `role` is CURVE, CLAIM or LEVEL. A level
    line has no unit, and ε NaN.
    """

    cell: Cell
    result: CellResult
    role: str
    claimed: Entry
    holds: Entry

    @property
    def at(self) -> float:
        """The upper end of the ε that holds."""
        return self.holds.epsilon_high


def read(item: Item, results: str | Path) -> list[Point]:
    """The points of a frontier; a cell that protects two units has two, unless a sweep
    leaves one of them where it is.

    Of several seeds the worst account counts.

    Raises:
        BenchError: a file of a run is missing or damaged.
    """
    points: list[Point] = []
    for cell in item.cells:
        result = read_cell(results, cell.folders)
        for accounts in result.accounts_by_unit:
            claimed, holds = (
                worst_epsilon(accounts, profile) for profile in ("as_claimed", "holds")
            )
            swept = cell.x is not None and math.isfinite(holds.epsilon_high)
            role = LEVEL if result.unit is None else CURVE if swept else CLAIM
            points.append(
                Point(cell=cell, result=result, role=role, claimed=claimed, holds=holds)
            )
    # Of the units of a curve, those whose epsilon the sweep moves, if it moves any.
    values_of: dict[tuple[str, str], set[float]] = {}
    for point in (point for point in points if point.role == CURVE):
        values_of.setdefault((point.cell.series, point.holds.unit), set()).add(point.at)
    moved = {curve for curve, ends in values_of.items() if len(ends) > 1}
    still = {
        (series, unit)
        for series, unit in values_of
        if series in {name for name, _ in moved}
    } - moved
    order = (CURVE, CLAIM, LEVEL)  # in the legend, too
    return sorted(
        (
            point
            for point in points
            if point.role != CURVE or (point.cell.series, point.holds.unit) not in still
        ),
        key=lambda point: order.index(point.role),
    )


def tidy(points: Sequence[Point]) -> pd.DataFrame:
    """One row for each point: where it stands, what it claims, what holds, and its
    accuracy with a 95 % interval.

    `epsilon_asked` is the swept value, empty where nothing is swept; `epsilon_holds`
    the upper end, inf for none.
    """
    return pd.DataFrame(
        {
            "dataset": point.cell.dataset,
            "task": point.cell.tested,
            "series": point.cell.series,
            "label": point.cell.label,
            "method": point.cell.method,
            "role": point.role,
            "unit": point.holds.unit,
            "delta": point.holds.delta,
            "epsilon_asked": math.nan if point.cell.x is None else point.cell.x,
            "epsilon_claimed": point.claimed.epsilon_high,
            "epsilon_holds_low": point.holds.epsilon_low,
            "epsilon_holds": point.holds.epsilon_high,
            "value": point.result.accuracy.mean,
            "low": point.result.accuracy.low,
            "high": point.result.accuracy.high,
            "seeds": point.result.seeds,
        }
        for point in points
    )


def listing(table: pd.DataFrame) -> Listing:
    """All frontiers, as `tidy` made them or as read from CSV, for people."""
    rows = [
        {
            "method": values.words(row["label"]),
            "data": values.words(row["dataset"]),
            "task": values.words(row["task"]),
            "role": values.words(row["role"]),
            "accuracy, %": values.accuracy(
                Interval(
                    mean=row["value"],
                    low=row["low"],
                    high=row["high"],
                    count=0,
                    over="",
                )
            ),
            "ε claimed": values.number(row["epsilon_claimed"]),
            "ε that holds": values.between(
                row["epsilon_holds_low"], row["epsilon_holds"]
            ),
            "unit": values.words(row["unit"]),
            "δ": values.number(row["delta"], "g"),
            "seeds": values.number(row["seeds"], "d"),
        }
        for row in table.fillna({"unit": ""}).to_dict("records")
    ]
    return Listing(
        title="The frontier: accuracy over the ε that holds", rows=rows, notes=_NOTES
    )


_NOTES = (
    (
        "Role curve: trained with calibrated noise, the least that keeps the ε asked"
        " for. Role claim: run as published; ε claimed is the paper's accounting,"
        " applied to the run made here. Role level: trained without privacy, so that it"
        " has no ε."
    ),
    (
        "ε that holds is that of the worst seed. Intervals are 95 % t intervals over"
        " seeds; with one seed they are over its test tasks. The table of privacy says"
        " whether an audit exceeds an ε."
    ),
)


def make(item: Item, results: str | Path) -> tuple[Figure, pd.DataFrame]:
    """Read a frontier's runs from the results folder, and draw it: the figure and what
    it shows, as `tidy`.
    """
    points = read(item, results)
    return draw(item, points), tidy(points)


def draw(item: Item, points: Sequence[Point]) -> Figure:
    """A panel for each unit, the ones with curves wider; one legend below."""
    curved = {point.holds.unit for point in points if point.role == CURVE}
    units = list(
        dict.fromkeys(point.holds.unit for point in points if point.role != LEVEL)
    ) or [""]
    units.sort(key=lambda unit: unit not in curved)
    swept = [unit in curved for unit in units]
    ratios = [1.0 if wide else 0.45 for wide in swept]
    figure = Figure(
        figsize=(4.2 + 4.2 * sum(ratios), 6.2), dpi=DPI, layout="constrained"
    )
    panels = figure.subplots(
        1, len(units), sharey=True, squeeze=False, width_ratios=ratios
    )[0]
    style = {
        series: (
            COLOURS[index % len(COLOURS)],
            MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
        )
        for index, series in enumerate(
            dict.fromkeys(point.cell.series for point in points)
        )
    }
    for axes, unit in zip(panels, units, strict=True):
        _draw_panel(
            axes,
            [
                point
                for point in points
                if point.holds.unit == unit or point.role == LEVEL
            ],
            unit,
            style,
        )
        axes.set_xlabel(f"{item.spec['x']['label']}{axes.get_xlabel()}", fontsize=10)
    panels[0].set_ylabel(item.spec["y"]["label"], fontsize=10)
    figure.suptitle(item.spec["title"], fontsize=12)
    handles = dict[str, Line2D]()
    for point in points:
        colour, marker = style[point.cell.series]
        look: dict[str, Any] = {
            "linestyle": {CURVE: "-", LEVEL: "--", CLAIM: "none"}[point.role],
            "color": colour,
        }
        look |= {
            "marker": "" if point.role == LEVEL else marker,
            "mfc": "none" if point.role == CLAIM else colour,
        }
        handles.setdefault(
            point.cell.series, Line2D([], [], ms=7, label=point.cell.label, **look)
        )
    legend_below(
        figure, list(handles.values()), _notes(item, points), columns=3, size=9
    )
    return figure


def _notes(item: Item, points: Sequence[Point]) -> str:
    """What stands below: what was measured on what, and what marks and bands are."""
    data = ", ".join(
        dict.fromkeys(f"{cell.dataset} {cell.tested}" for cell in item.cells)
    )
    seeds = values.plural(values.span(point.result.seeds for point in points), "seed")
    over = {point.result.accuracy.over for point in points}
    bands = (
        "seeds"
        if over == {"seeds"}
        else "the tested " + " or ".join(sorted(over - {"seeds"})) + " of one seed"
    )
    bands = (
        f"seeds, or over {bands} where only one seed was run"
        if len(over) > 1 and "seeds" in over
        else bands
    )
    said = [
        f"Measured on {data}, {seeds}. Bands and bars: 95 % t intervals over {bands}.",
        "A hollow mark is a method as published, drawn at the ε that its paper claims.",
        "Its arrow ends at the ε that holds; ∞: no finite ε holds.",
        *attributed_notices([(point.cell.label, point.result) for point in points]),
    ]
    return wrapped(dict.fromkeys(said), 130)


def _draw_panel(
    axes: Axes, points: Sequence[Point], unit: str, style: dict[str, tuple[str, str]]
) -> None:
    ends = [point.at for point in points]
    ends += [point.claimed.epsilon_high for point in points if point.role == CLAIM]
    ends = [end for end in ends if math.isfinite(end) and end > 0]
    low, high = (min(ends) / 1.5, max(ends) * 1.5) if ends else (0.5, 8.0)
    edge = high * 1.35
    for series in dict.fromkeys(point.cell.series for point in points):
        own = [point for point in points if point.cell.series == series]
        colour, marker = style[series]
        if curve := sorted(
            (point for point in own if point.role == CURVE), key=lambda point: point.at
        ):
            xs, intervals = (
                [point.at for point in curve],
                [point.result.accuracy for point in curve],
            )
            axes.plot(
                xs,
                [each.mean for each in intervals],
                color=colour,
                marker=marker,
                lw=2,
                zorder=3,
            )
            band = [each.low for each in intervals], [each.high for each in intervals]
            axes.fill_between(xs, *band, color=colour, alpha=0.15, linewidth=0)
        for point in own:
            if point.role == LEVEL:
                axes.axhline(
                    point.result.accuracy.mean,
                    color=colour,
                    linestyle="--",
                    lw=1.6,
                    zorder=1,
                )
            elif point.role == CLAIM:
                _draw_claim(
                    axes,
                    point,
                    edge,
                    colour,
                    marker,
                    size=8 + 7 * _above(point, points),
                )
    axes.set_xscale("log")
    axes.set_xlim(low, edge * 1.25)
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in range(-6, 11)]))
    axes.xaxis.set_major_formatter(plain)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=9.5)
    tidied(axes)
    deltas = sorted({point.holds.delta for point in points if point.role != LEVEL})
    axes.set_xlabel(
        f" of a {unit},\nδ = {' or '.join(map('{:g}'.format, deltas))}" if unit else ""
    )


def _above(point: Point, points: Sequence[Point]) -> int:
    """How many later claims are drawn over this one: a mark is larger by that, so that
    its rim stays visible.
    """
    return sum(
        other.role == CLAIM
        and other.cell.series != point.cell.series
        and math.isclose(
            other.claimed.epsilon_high, point.claimed.epsilon_high, rel_tol=0.1
        )
        and math.isclose(
            other.result.accuracy.mean, point.result.accuracy.mean, abs_tol=1.5
        )
        for other in points[points.index(point) + 1 :]
    )


def _draw_claim(
    axes: Axes, point: Point, edge: float, colour: str, marker: str, size: float
) -> None:
    """Hollow at the epsilon that is claimed, with an arrow to the one that holds;
    without a claim, at the latter.
    """
    interval, finite, end = (
        point.result.accuracy,
        math.isfinite(point.at),
        min(point.at, edge),
    )
    y, start = (
        interval.mean,
        (
            end
            if math.isnan(point.claimed.epsilon_high)
            else min(point.claimed.epsilon_high, edge)
        ),
    )
    look: dict[str, Any] = {
        "mec": colour,
        "mfc": "white",
        "ecolor": colour,
        "ms": size,
        "mew": 1.6,
        "capsize": 2,
    }
    axes.errorbar(
        start, y, yerr=half_widths(interval), fmt=marker, elinewidth=1, zorder=4, **look
    )
    if end != start:
        arrow = {
            "color": colour,
            "arrowstyle": "-|>",
            "shrinkA": 5,
            "shrinkB": 0,
            "linewidth": 1.6,
        }
        axes.annotate(
            "", (end, y), (start, y), zorder=3 if finite else 2.5, arrowprops=arrow
        )  # the longest lie below
    if not finite:
        axes.annotate(
            "∞",
            (edge, y),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=12,
        )
