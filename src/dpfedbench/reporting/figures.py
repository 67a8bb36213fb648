"""Figures: accuracy over a swept value, quantities over the rounds; each with the numbers drawn."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter, MaxNLocator

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import Interval
from dpfedbench.methods import METHODS
from dpfedbench.reporting import values
from dpfedbench.reporting.described import Cell, Item
from dpfedbench.reporting.results import (
    CellResult,
    Published,
    attributed_notices,
    read_cell,
    read_history,
    read_published,
)
from dpsum.accounting.calibration import delta_after

# Okabe and Ito's colours, told apart with any colour vision; markers and dashes tell the lines apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS, SIGNS = ("o", "s", "^", "D", "v", "P"), "●■▲◆▼✚"
PUBLISHED = "#000000"
WIDTH, HEIGHT, DPI = 5.6, 4.3, 160
ROW = 0.14
"""Inches of a row of ε above a figure."""
STILL = 0.001
"""Lines that move by no more than this share of their value are drawn as level."""


def plain(value: float, place: float | None) -> str:
    """A number of an axis as it is."""
    return f"{value:g}"


def tidied(
    axes: Axes,
    axis: Literal["both", "x"] = "both",
    *,
    colour: str = "#e3e3e3",
    spines: Sequence[str] = ("top", "right"),
) -> None:
    """A light grid behind what is drawn, and no frame where it says nothing."""
    axes.grid(axis=axis, color=colour, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[list(spines)].set_visible(False)


def draw_point(
    axes: Axes, x: float, y: float, interval: Interval, marker: str, colour: str, **look: Any
) -> None:  # fmt: skip
    """A mark with the bar of its interval, where it has one."""
    spread = None if math.isnan(interval.low) else [[y - interval.low], [interval.high - y]]
    axes.errorbar(x, y, yerr=spread, fmt=marker, mec=colour, ecolor=colour, **look)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, zorder: float, **look: Any
) -> None:
    """An arrow from one point to another."""
    axes.annotate("", end, start, zorder=zorder, arrowprops={"color": colour, **look})


class _MinorDecimals(LogFormatter):
    """Labels of a log axis between its powers of ten, as plain decimals."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


class Line(NamedTuple):
    """A line to draw: `low` and `high` are the ends of its band, NaN where it has none.

    `x` None makes it level: a value that does not depend on what the axis shows. `notes` are the ε of each point, as
    claimed and as it holds, and stand above the axes. `cells` are what the points are of, one for each or one for all;
    none where nothing is trained.
    """

    series: str
    curve: str
    label: str
    x: np.ndarray | None
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    dashed: bool = False
    notes: tuple[tuple[values.Shown, values.Shown], ...] = ()
    cells: tuple[CellResult, ...] = ()


def sweep_lines(item: Item, cells: Sequence[CellResult]) -> list[Line]:
    """The lines of a sweep: one for each series, its accuracy in percent over the swept values, or over an ε.

    Over an ε, what claims no privacy is a level line. A point of which no finite ε holds is at infinity: it is among
    the numbers, and no axis has it.
    """
    lines, shows = [], item.spec["x"].get("show", "value")
    for series in dict.fromkeys(cell.series for cell in item.cells):
        found = [(cell, result) for cell, result in zip(item.cells, cells, strict=True) if cell.series == series]
        swept, places = found[0][0].x is not None, [cell.x or 0.0 for cell, _ in found]
        if shows != "value":
            places = [(result.holds if shows == "epsilon_holds" else result.claimed).high for _, result in found]
            swept = not all(map(math.isnan, places))
        order = sorted(range(len(found)), key=lambda index: (math.isnan(places[index]), places[index]))
        results = tuple(found[index][1] for index in order)
        xs = np.array([places[index] for index in order]) if swept else None
        mean, low, high = np.array([(one.accuracy.mean, one.accuracy.low, one.accuracy.high) for one in results]).T
        notes = _epsilons(results) if swept and shows == "value" else ()
        lines.append(Line(series, "accuracy", found[0][0].label, xs, mean, low, high, not swept, notes, results))
    return lines


def _epsilons(cells: Sequence[CellResult]) -> tuple[tuple[values.Shown, values.Shown], ...]:
    """Both ε of each point, where the points differ in them: an axis that moves the privacy has to say so."""
    pairs = [(values.epsilon(cell.claimed), values.epsilon(cell.holds)) for cell in cells]
    return tuple(pairs) if len(set(pairs)) > 1 else ()


def history_lines(item: Item, results: str | Path, cells: Sequence[CellResult]) -> list[Line]:
    """The lines of a history: for each curve the mean over seeds of a column of history.csv.

    A curve may be divided by another column (`per`). Its band is the mean of two more columns where it names
    them (quantiles), and else runs from the lowest seed to the highest.

    Raises:
        BenchError: a run's history is missing or has no such column, or an empty one.
    """
    lines, axis = [], item.spec["x"]["column"]
    for cell, result in zip(item.cells, cells, strict=True):
        paths = [Path(results, "runs", folder, "history.csv") for folder in cell.folders]
        for column, curve in item.spec["series"][cell.series].get("curves", item.spec.get("curves", {})).items():
            xs, found = _aligned(paths, axis, column, curve.get("per"))
            low, high = found.min(axis=0), found.max(axis=0)
            if "band" in curve:
                ends = (_aligned(paths, axis, name, curve.get("per"))[1] for name in curve["band"])
                low, high = (end.mean(axis=0) for end in ends)
            label, dashed = curve.get("label", cell.label), curve.get("dashed", False)
            mean = found.mean(axis=0)
            lines.append(Line(cell.series, column, label, xs, mean, low, high, dashed, cells=(result,)))
    return lines


_POINTS = 25
"""Rounds at which delta over the rounds is computed."""


def account_lines(item: Item) -> list[Line]:
    """The lines of a figure of accounts: for each series delta at its epsilon, by accounting alone.

    Over a swept value it is delta after all rounds, over the column "round" after so many. A threshold that reads what
    no release protects leaves delta at 1 under `holds`.
    """
    lines = []
    for series in dict.fromkeys(cell.series for cell in item.cells):
        found = sorted((cell for cell in item.cells if cell.series == series), key=lambda cell: cell.x or 0.0)
        given = item.spec["series"][series]
        points = [(cell, cell.x or 0.0, _rounds(cell)) for cell in found]
        if "column" in item.spec["x"]:
            total = _rounds(found[0])
            places = dict.fromkeys(round(place) for place in np.linspace(1, total, min(_POINTS, total)))
            points = [(found[0], float(place), place) for place in places]
        xs, nothing = np.array([x for _, x, _ in points]), np.full(len(points), math.nan)
        deltas = np.array([_delta(cell, given["profile"], done, given["epsilon"]) for cell, _, done in points])
        dashed = given["profile"] == "as_claimed"
        lines.append(Line(series, "delta", found[0].label, xs, deltas, nothing, nothing, dashed))
    return lines


def _rounds(cell: Cell) -> int:
    return 0 if cell.mechanism is None else int(cell.mechanism.sampler["rounds"])


def _delta(cell: Cell, profile: str, done: int, epsilon: float) -> float:
    """1 where no account says less: without noise, and under `holds` where something is read that none counts."""
    found = cell.mechanism
    if found is None or found.noise_multiplier is None or (profile == "holds" and not found.counted):
        return 1.0
    return delta_after(
        profile, found.sampler, found.noise_multiplier, done, epsilon, claims=METHODS[cell.method].claims,
        mechanism=found.mechanism,
    )  # fmt: skip


def _aligned(paths: Sequence[Path], axis: str, column: str, per: str | None) -> tuple[np.ndarray, np.ndarray]:
    """The places [n] and the values [seeds, n] of a column that may not be filled in every round.

    A budget may stop one seed before another, and noise that decays spends it at another pace: seeds are brought to
    the places of the one that came least far, between their own by straight lines.
    """
    found = []
    for path in paths:
        table = read_history(path)
        given = {name: table[name].to_numpy(float) for name in table if not table[name].isna().all()}
        if missing := [name for name in (column, per, axis) if name is not None and name not in given]:
            raise BenchError(f"{path} has no {missing[0]} to draw: name one of {', '.join(map(str, given))}")
        numbers = given[column] if per is None else given[column] / given[per]
        filled = np.isfinite(numbers)
        found.append((given[axis][filled], numbers[filled]))
    xs = min((places for places, _ in found), key=lambda places: places[-1])
    return xs, np.stack([np.interp(xs, places, numbers) for places, numbers in found])


def draw(item: Item, lines: Sequence[Line], published: Sequence[Published], footer: str) -> Figure:
    """Draw the lines with their bands, and the published numbers where there are any.

    Args:
        item: the figure's description, whose spec gives title, labels and scales.
        lines: what was measured.
        published: the paper's numbers: those with an x are points, the others level lines.
        footer: what it was measured on and what the bands are, in small print below.
    """
    spec = item.spec
    noted = sum(bool(line.notes) for line in lines)
    figure = Figure(figsize=(WIDTH, HEIGHT + 2 * noted * ROW), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    sweep, over_epsilon = item.kind == "sweep" or "key" in spec["x"], spec["x"].get("show", "value") != "value"
    for index, line in enumerate(lines):
        _draw_line(axes, line, index, marked=sweep)
    for number in published:
        _draw_published(axes, number, comparable=not item.mismatches)
    axes.set_xscale(spec["x"].get("scale", "linear"))
    axes.set_yscale(spec["y"].get("scale", "linear"))
    if spec["y"].get("scale", "linear") == "linear":
        axes.ticklabel_format(axis="y", useOffset=False)  # numbers as they are, also where they hardly differ
    else:
        axes.yaxis.set_major_formatter(plain)
        axes.yaxis.set_minor_formatter(_MinorDecimals(minor_thresholds=(2, 0.4)))
    marks = item.kind == "sweep"  # counts of clients are too long to stand at each value
    swept = sorted({x for line in lines if marks and line.x is not None for x in line.x.tolist()})
    if 0 < len(swept) <= 12 and not over_epsilon:
        axes.set_xticks(swept, [f"{x:g}" for x in swept])
        axes.minorticks_off()
    if over_epsilon:
        axes.xaxis.set_major_formatter(plain)
        axes.xaxis.set_minor_formatter(_MinorDecimals(minor_thresholds=(2, 0.4)))
    if spec["x"].get("column") == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.14 if any(line.notes for line in lines) else 0.08 if sweep else 0.02, y=0.12)
    if item.kind == "account":
        # Room for the legend below lines that go all the way across.
        low, high = axes.get_ylim()
        axes.set_ylim(low * (low / high) ** 0.45, high)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel(spec["x"]["label"])
    axes.set_ylabel(spec["y"]["label"])
    axes.set_title(wrapped([spec["title"]], 56), fontsize=11, pad=6 + 144 * noted * ROW)
    _draw_notes(axes, lines)
    if item.kind == "history" and (still := _still(lines)):
        low, high = still
        axes.set_ylim(low - high / 50, high + high / 50)
        said = f"Nothing moves: all values lie\nbetween {low:#.7g} and {high:#.7g}."
        axes.text(0.5, 0.25, said, ha="center", transform=axes.transAxes)
    tidied(axes, colour="#d9d9d9")
    axes.legend(fontsize=8, frameon=True, framealpha=0.9, loc="lower left" if item.kind == "account" else "best")
    figure.supxlabel(footer, fontsize=7.5, color="#444444", x=0.01, ha="left")
    return figure


def _draw_line(axes: Axes, line: Line, index: int, *, marked: bool) -> None:
    colour = COLOURS[index % len(COLOURS)]
    dashes = "--" if line.dashed else "-"
    # Each thinner than the one below it, so that lines that coincide are all seen.
    width = max(1.4, 3.4 - 0.9 * index)
    if line.x is None:
        axes.axhline(line.value[0], color=colour, linestyle=dashes, linewidth=width, label=line.label)
        if math.isfinite(line.low[0]):
            axes.axhspan(line.low[0], line.high[0], color=colour, alpha=0.15, linewidth=0)
        return
    marker = MARKERS[index % len(MARKERS)] if marked else None
    finite = np.isfinite(line.x)
    axes.plot(
        line.x[finite], line.value[finite], color=colour, linestyle=dashes, linewidth=width,
        marker=marker, markersize=3 + 2 * width, label=line.label,
    )  # fmt: skip
    if finite.sum() == 1 and np.isfinite(line.low[finite]).all():
        low, value, high = (given[finite] for given in (line.low, line.value, line.high))
        axes.errorbar(line.x[finite], value, yerr=[value - low, high - value], fmt="none", ecolor=colour, capsize=3)
    elif np.isfinite(line.low).any():
        axes.fill_between(line.x[finite], line.low[finite], line.high[finite], color=colour, alpha=0.2, linewidth=0)


def _draw_notes(axes: Axes, lines: Sequence[Line]) -> None:
    """Rows of ε above the axes, where no curve is: for each line one as claimed and one that holds, at their x."""
    row, above = 0, axes.get_xaxis_transform()
    for index, line in reversed(list(enumerate(lines))):
        for place, which in ((1, "ε that holds"), (0, "ε claimed")) if line.notes else ():
            colour, height = COLOURS[index % len(COLOURS)], 4 + 72 * ROW * row
            look: dict[str, Any] = {"textcoords": "offset points", "color": colour, "fontsize": 7.5}
            given = [note[place] for note in line.notes]
            shown = [values.words(each.text) if each.key == math.inf else each for each in given]
            status = {each.note for each in shown}
            name = f"{SIGNS[index % len(SIGNS)]} {which}"
            if len(status) == 1 and (common := status.pop()):  # said once
                name, shown = f"{name} ({common})", [values.words(each.text) for each in shown]
            axes.annotate(name, (0, 1), (-4, height), "axes fraction", ha="right", **look)
            for x, each in zip(line.x if line.x is not None else (), shown, strict=True):
                axes.annotate(each.line, (x, 1), (0, height), above, ha="center", **look)
            row += 1


def _still(lines: Sequence[Line]) -> tuple[float, float] | None:
    """The least and the largest value of positive lines that hardly move, None for others."""
    given = np.concatenate([line.value for line in lines])
    low, high = float(given.min()), float(given.max())
    return (low, high) if high > 0 and high - low <= STILL * high else None


def _draw_published(axes: Axes, number: Published, *, comparable: bool) -> None:
    """Filled where ours may be read against it, hollow and so labelled where not."""
    label = f"published: {number.value:g} ({number.variant})" + ("" if comparable else ", not comparable")
    if number.x is None:
        axes.axhline(number.value, color=PUBLISHED, linestyle=":", linewidth=1.2, label=label)
    else:
        face = PUBLISHED if comparable else "none"
        axes.plot(number.x, number.value, "*", ms=12, mec=PUBLISHED, mfc=face, linestyle="none", label=label)


def make(item: Item, results: str | Path, published: str | Path) -> tuple[Figure, pd.DataFrame]:
    """Read a figure's runs and draw it.

    Returns:
        The figure and a table of what was drawn (`drawn`).
    """
    if item.kind == "frontier":
        from dpfedbench.reporting import frontier  # which draws with what is here

        return frontier.make(item, results)
    computed = item.kind == "account"
    cells = [read_cell(results, cell.folders, cell.metrics) for cell in item.cells if not computed]
    numbers = read_published(published, item.paper, item.name)
    if item.spec["x"].get("show", "value") != "value":
        numbers = [number for number in numbers if number.x is None]  # printed over the swept value
    if computed:
        lines = account_lines(item)
    elif item.kind == "sweep":
        lines = sweep_lines(item, cells)
    else:
        lines = history_lines(item, results, cells)
    return draw(item, lines, numbers, _footer(item, cells, lines, numbers)), drawn(item, lines, numbers)


def wrapped(said: Sequence[str], width: int = 94) -> str:
    """Lines of at most `width` letters; an equation stays on one line."""
    whole = [text.replace(" = ", "\u00a0=\u00a0") for text in said]
    return "\n".join(line for text in whole for line in textwrap.wrap(text, width)).replace("\u00a0", " ")


def _footer(item: Item, cells: Sequence[CellResult], lines: Sequence[Line], published: Sequence[Published]) -> str:
    """What stands below a figure: data, task, seeds, bands, and why a published number is not comparable."""
    if item.kind == "account":
        said = ["Accounting only, nothing was trained: every point is at the scale that axis and title name."]
        if any((line.value == 1).all() for line in lines):
            said.append("δ = 1: the clipping threshold reads raw norms, so no smaller δ holds.")
        return wrapped(said)
    tested: dict[str, dict[str, None]] = {}
    for cell in item.cells:
        tested.setdefault(cell.dataset, {})[cell.tested] = None
    data = ", ".join(f"{name} {', '.join(tasks)}" for name, tasks in tested.items())
    seeds = max(cell.seeds for cell in cells)
    said = [f"Measured on {data}, {values.plural(seeds, 'seed')}."]
    if item.kind == "sweep":
        over = "seeds" if cells[0].accuracy.over == "seeds" else f"the {cells[0].counted}s of one seed"
        said[0] += f" Bands: 95 % t intervals over {over}."
    elif seeds > 1:
        said[0] += " Lines: means over seeds. Bands, unless named: lowest to highest seed."
    if item.spec["x"].get("show", "value") != "value":
        deltas = sorted({f"{cell.delta:g}" for cell in cells if cell.delta is not None})
        said.append(f"ε at δ = {', '.join(deltas)}." if deltas else "No line claims privacy.")
        for line in lines:
            if line.x is not None and (without := int((~np.isfinite(line.x)).sum())):
                said.append(f"{line.label}: no finite ε for {values.plural(without, 'point')}, which the CSV has.")
            elif line.x is None:
                said.append(f"{line.label}: claims no privacy.")
    if any(line.notes for line in lines):
        delta = next(cell.delta for cell in cells if cell.delta is not None)
        said.append(f"Above the points: their ε, at δ = {delta:g}.")
    if published:
        said += [f"Not comparable: {text}." for text in item.mismatches]
    said += attributed_notices([(cell.label, result) for cell, result in zip(item.cells, cells, strict=True)])
    return wrapped(said)


def drawn(item: Item, lines: Sequence[Line], published: Sequence[Published]) -> pd.DataFrame:
    """The numbers of a figure, one row a point; `source` is "measured" or where a paper prints it.

    The ε are the upper ends at the end of the training, at δ; empty where no privacy is claimed.
    """
    columns = ["dataset", "task", "series", "curve", "label", "x", "value", "low", "high"]
    columns += ["epsilon_claimed", "epsilon_holds", "delta", "unit", "source"]
    of_series = {cell.series: (cell.dataset, cell.task) for cell in reversed(item.cells)}
    records: list[tuple[object, ...]] = []
    for line in lines:
        xs = [math.nan] * len(line.value) if line.x is None else line.x
        privacy = [(cell.claimed.high, cell.holds.high, cell.delta, cell.unit) for cell in line.cells]
        privacy = privacy or [(math.nan, math.nan, None, None)]
        if len(privacy) == 1:
            privacy *= len(line.value)
        for x, value, low, high, of in zip(xs, line.value, line.low, line.high, privacy, strict=True):
            place = (*of_series[line.series], line.series, line.curve, line.label)
            records.append((*place, x, value, low, high, *of, "measured"))
    first = item.cells[0]
    for number in published:
        place = (first.published_dataset, first.task, "published", "accuracy", number.variant)
        x = math.nan if number.x is None else number.x
        privacy_of = (math.nan, math.nan, None, None)
        records.append((*place, x, number.value, math.nan, math.nan, *privacy_of, f"{item.paper}, {number.source}"))
    return pd.DataFrame(records, columns=columns)
