"""The lines of a figure: accuracy over a swept value, quantities over the rounds, δ by
accounting alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpfedbench.errors import BenchError
from dpfedbench.papers import METHODS
from dpfedbench.reporting import values
from dpfedbench.reporting.described import Cell, Item
from dpfedbench.reporting.results import CellResult, read_history
from dpsum.accounting.calibration import delta_after

_POINTS = 25
"""Rounds at which δ over the rounds is computed."""


class Line(NamedTuple):
    """A line to draw.

    Attributes:
        x: where its points stand; None for a level line, whose value does not depend on
            what the axis shows.
        low, high: the ends of its band, NaN where it has none.
        notes: the ε of each point, as claimed and as it holds, which are written above
            the axes.
        cells: the cell of each point, or one for all points; none where nothing is
            trained.
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


def sweep_lines(item: Item, results: Sequence[CellResult]) -> list[Line]:
    """The lines of a sweep: one for each series, its accuracy in percent over the swept
    values, or over an ε.

    Over an ε, a series that claims no privacy is a level line. A point of which no
    finite ε holds lies at infinity: the CSV has it, and the axis has no place for it.
    """
    lines, shows = [], item.spec["x"].get("show", "value")
    for series, cells in _by_series(item).items():
        own = [
            result
            for cell, result in zip(item.cells, results, strict=True)
            if cell.series == series
        ]
        swept, places = cells[0].x is not None, [cell.x or 0.0 for cell in cells]
        if shows != "value":
            places = [
                (each.holds if shows == "epsilon_holds" else each.claimed).epsilon_high
                for each in own
            ]
            swept = not all(map(math.isnan, places))
        order = sorted(
            range(len(cells)),
            key=lambda index: (math.isnan(places[index]), places[index]),
        )
        ordered = tuple(own[index] for index in order)
        xs = np.array([places[index] for index in order]) if swept else None
        intervals = [each.accuracy for each in ordered]
        mean, low, high = np.array(
            [(each.mean, each.low, each.high) for each in intervals]
        ).T
        # Both ε of each point, where they differ from point to point: then the axis
        # moves the privacy, and must say so.
        pairs = tuple(
            (values.epsilon(each.claimed), values.epsilon(each.holds))
            for each in ordered
        )
        notes = pairs if swept and shows == "value" and len(set(pairs)) > 1 else ()
        lines.append(
            Line(
                series,
                "accuracy",
                cells[0].label,
                xs,
                mean,
                low,
                high,
                not swept,
                notes,
                ordered,
            )
        )
    return lines


def _by_series(item: Item) -> dict[str, list[Cell]]:
    series: dict[str, list[Cell]] = {}
    for cell in item.cells:
        series.setdefault(cell.series, []).append(cell)
    return series


def history_lines(
    item: Item, folder: str | Path, results: Sequence[CellResult]
) -> list[Line]:
    """The lines of a history: for each curve the mean over seeds of a column of
    history.csv.

    A curve may be divided by another column (`per`). Its band goes from the lowest seed
    to the highest, or is the mean of two more columns (quantiles) where the curve names
    them.

    Raises:
        BenchError: a run's history is missing or has no such column, or an empty one.
    """
    lines, axis = [], item.spec["x"]["column"]
    for cell, result in zip(item.cells, results, strict=True):
        paths = [Path(folder, "runs", run, "history.csv") for run in cell.folders]
        for column, curve in (
            item.spec["series"][cell.series]
            .get("curves", item.spec.get("curves", {}))
            .items()
        ):
            xs, seeds = _aligned(paths, axis, column, curve.get("per"))
            low, high = seeds.min(axis=0), seeds.max(axis=0)
            if "band" in curve:
                ends = (
                    _aligned(paths, axis, name, curve.get("per"))[1]
                    for name in curve["band"]
                )
                low, high = (end.mean(axis=0) for end in ends)
            label, dashed = curve.get("label", cell.label), curve.get("dashed", False)
            lines.append(
                Line(
                    cell.series,
                    column,
                    label,
                    xs,
                    seeds.mean(axis=0),
                    low,
                    high,
                    dashed,
                    cells=(result,),
                )
            )
    return lines


def _aligned(
    paths: Sequence[Path], axis: str, column: str, per: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """The places [n] and the values [seeds, n] of a column that need not be filled in
    every round.

    A budget may stop one seed before another, and noise that decays spends it at
    another pace. So all seeds are interpolated linearly at the places of the seed that
    came least far.
    """
    curves = []
    for path in paths:
        table = read_history(path).dropna(axis="columns", how="all")
        if missing := [
            name
            for name in (column, per, axis)
            if name is not None and name not in table
        ]:
            raise BenchError(
                f"{path} has no {missing[0]} to draw: name one of"
                f" {', '.join(map(str, table))}"
            )
        numbers = table[column].to_numpy(float) / (
            1.0 if per is None else table[per].to_numpy(float)
        )
        filled = np.isfinite(numbers)
        curves.append((table[axis].to_numpy(float)[filled], numbers[filled]))
    xs = min((places for places, _ in curves), key=lambda places: places[-1])
    return xs, np.stack([np.interp(xs, places, numbers) for places, numbers in curves])


def account_lines(item: Item) -> list[Line]:
    """The lines of a figure of accounts: for each series δ at its ε, by accounting
    alone.

    Over a swept value it is δ after all rounds, over the column "round" δ after so
    many. Where the clipping threshold reads what no release protects, δ is 1 under
    `holds`.
    """
    lines = []
    for series, unordered in _by_series(item).items():
        cells = sorted(unordered, key=lambda cell: cell.x or 0.0)
        given, first = item.spec["series"][series], cells[0]
        points = [(cell, cell.x or 0.0, _rounds(cell)) for cell in cells]
        if "column" in item.spec["x"]:
            total = _rounds(first)
            places = dict.fromkeys(
                round(place) for place in np.linspace(1, total, min(_POINTS, total))
            )
            points = [(first, float(place), place) for place in places]
        xs, nothing = (
            np.array([x for _, x, _ in points]),
            np.full(len(points), math.nan),
        )
        deltas = np.array(
            [
                _delta(cell, given["profile"], done, given["epsilon"])
                for cell, _, done in points
            ]
        )
        dashed = given["profile"] == "as_claimed"
        lines.append(
            Line(series, "delta", first.label, xs, deltas, nothing, nothing, dashed)
        )
    return lines


def _rounds(cell: Cell) -> int:
    return 0 if cell.mechanism is None else int(cell.mechanism.sampler["rounds"])


def _delta(cell: Cell, profile: str, done: int, epsilon: float) -> float:
    """δ after `done` rounds; 1 without noise, and under `holds` where something that is
    read is not a release.
    """
    ran = cell.mechanism
    if (
        ran is None
        or ran.noise_multiplier is None
        or (profile == "holds" and not ran.counted)
    ):
        return 1.0
    return delta_after(
        profile,
        ran.sampler,
        ran.noise_multiplier,
        done,
        epsilon,
        claims=METHODS[cell.method].claims,
        mechanism=ran.mechanism,
    )
