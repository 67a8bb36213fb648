"""The lines of a figure: accuracy over a swept value, quantities over the rounds, δ by accounting alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpfedbench.errors import BenchError
from dpfedbench.methods import METHODS
from dpfedbench.reporting import values
from dpfedbench.reporting.described import Cell, Item
from dpfedbench.reporting.results import CellResult, read_history
from dpsum.accounting.calibration import delta_after

_POINTS = 25
"""Rounds at which δ over the rounds is computed."""


class Line(NamedTuple):
    """A line to draw.

    Attributes:
        x: where its points stand; None for a level line, whose value does not depend on what the axis shows.
        low, high: the ends of its band, NaN where it has none.
        notes: the ε of each point, as claimed and as it holds, which are written above the axes.
        cells: the cell of each point, or one for all points; none where nothing is trained.
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

    Over an ε, a series that claims no privacy is a level line. A point of which no finite ε holds lies at infinity: the
    CSV has it, and the axis has no place for it.
    """
    lines, shows = [], item.spec["x"].get("show", "value")
    for series in dict.fromkeys(cell.series for cell in item.cells):
        found = [(cell, result) for cell, result in zip(item.cells, cells, strict=True) if cell.series == series]
        swept, places = found[0][0].x is not None, [cell.x or 0.0 for cell, _ in found]
        if shows != "value":
            places = [
                (result.holds if shows == "epsilon_holds" else result.claimed).epsilon_high for _, result in found
            ]
            swept = not all(map(math.isnan, places))
        order = sorted(range(len(found)), key=lambda index: (math.isnan(places[index]), places[index]))
        results = tuple(found[index][1] for index in order)
        xs = np.array([places[index] for index in order]) if swept else None
        mean, low, high = np.array([(one.accuracy.mean, one.accuracy.low, one.accuracy.high) for one in results]).T
        notes = _epsilons(results) if swept and shows == "value" else ()
        lines.append(Line(series, "accuracy", found[0][0].label, xs, mean, low, high, not swept, notes, results))
    return lines


def _epsilons(cells: Sequence[CellResult]) -> tuple[tuple[values.Shown, values.Shown], ...]:
    """Both ε of each point, where they differ from point to point: then the axis moves the privacy, and must say so."""
    pairs = [(values.epsilon(cell.claimed), values.epsilon(cell.holds)) for cell in cells]
    return tuple(pairs) if len(set(pairs)) > 1 else ()


def history_lines(item: Item, results: str | Path, cells: Sequence[CellResult]) -> list[Line]:
    """The lines of a history: for each curve the mean over seeds of a column of history.csv.

    A curve may be divided by another column (`per`). Its band goes from the lowest seed to the highest, or is the mean
    of two more columns (quantiles) where the curve names them.

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


def _aligned(paths: Sequence[Path], axis: str, column: str, per: str | None) -> tuple[np.ndarray, np.ndarray]:
    """The places [n] and the values [seeds, n] of a column that need not be filled in every round.

    A budget may stop one seed before another, and noise that decays spends it at another pace. So all seeds are
    interpolated linearly at the places of the seed that came least far.
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


def account_lines(item: Item) -> list[Line]:
    """The lines of a figure of accounts: for each series δ at its ε, by accounting alone.

    Over a swept value it is δ after all rounds, over the column "round" δ after so many. Where the clipping threshold
    reads what no release protects, δ is 1 under `holds`.
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
    """δ after `done` rounds; 1 without noise, and under `holds` where something that is read is not a release."""
    found = cell.mechanism
    if found is None or found.noise_multiplier is None or (profile == "holds" and not found.counted):
        return 1.0
    return delta_after(
        profile, found.sampler, found.noise_multiplier, done, epsilon, claims=METHODS[cell.method].claims,
        mechanism=found.mechanism,
    )  # fmt: skip
