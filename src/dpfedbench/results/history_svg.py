"""Small plots of a run's history for the page of results: SVG that takes the page's
colours, light or dark.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup, escape

from dpfedbench.results.curves import read_history

# Columns of a history with their names for readers; what says most about a run comes
# first.
QUANTITIES = {
    "test_accuracy": "test accuracy, %",
    "validation_accuracy": "validation accuracy, %",
    "test_loss": "test loss",
    "validation_loss": "validation loss",
    "loss": "training loss",
    "released_norm": "norm of the release",
    "norm_q50": "median norm of a client's gradient",
    "threshold": "clipping threshold C",
    "noise_multiplier": "noise multiplier",
    "epsilon_claimed": "ε as claimed, so far",
    "epsilon_holds": "ε that holds, so far",
}
BUCKETS = 100
LOG_FROM = 50.0


class Curve(NamedTuple):
    """One seed's values of a quantity: `rounds` and `values` are [n], both finite."""

    seed: int
    rounds: np.ndarray
    values: np.ndarray


def read_curves(histories: Sequence[tuple[int, Path]]) -> dict[str, list[Curve]]:
    """The curves of `QUANTITIES` that have at least two points in every history, by
    column.

    `histories` are seed and history.csv of each run of one configuration.

    Raises:
        BenchError: a history is missing or is no CSV with a column `round`.
    """
    tables = [(seed, read_history(path)) for seed, path in histories]
    curves = {}
    for column in QUANTITIES:
        filled = [
            (seed, table[np.isfinite(table[column].astype(float))])
            for seed, table in tables
            if column in table
        ]
        if len(filled) == len(tables) and all(len(table) > 1 for _, table in filled):
            curves[column] = [
                Curve(
                    seed, table["round"].to_numpy(float), table[column].to_numpy(float)
                )
                for seed, table in filled
            ]
    return curves


def thinned(curve: Curve, buckets: int = BUCKETS) -> Curve:
    """The same curve with at most two points in each of `buckets` stretches: its lowest
    and its highest there.

    So a peak of a single round is still seen in a plot a hundred pixels wide.
    """
    count = len(curve.values)
    if count <= 2 * buckets:
        return curve
    indices: list[int] = []
    for stretch in np.array_split(np.arange(count), buckets):
        values = curve.values[stretch]
        indices += sorted(
            {int(stretch[values.argmin()]), int(stretch[values.argmax()])}
        )
    return Curve(curve.seed, curve.rounds[indices], curve.values[indices])


def draw(curves: Sequence[Curve], *, label: str, small: bool = False) -> Markup:
    """An SVG image of the curves of a quantity, one for each seed, over one pair of
    axes.

    A quantity that is positive and spans more than `LOG_FROM` has a logarithmic axis,
    which its name then says. A small image has only the lines, without a frame or
    numbers; the name for screen readers stays.
    """
    low = min(float(curve.values.min()) for curve in curves)
    high = max(float(curve.values.max()) for curve in curves)
    first, last = (
        min(curve.rounds[0] for curve in curves),
        max(curve.rounds[-1] for curve in curves),
    )
    logarithmic = low > 0 and high / low > LOG_FROM
    scale = np.log10 if logarithmic else np.asarray
    bottom, top = float(scale(low)), float(scale(high))
    width, height, left, below, ceiling = (
        (96, 28, 2, 2, 2) if small else (270, 120, 54, 18, 8)
    )
    floor = height - below

    def points(curve: Curve) -> str:
        thin = thinned(curve)
        xs = left + (thin.rounds - first) / max(last - first, 1) * (width - left - 3)
        share = (
            (scale(thin.values) - bottom) / (top - bottom)
            if top > bottom
            else np.full(len(thin.values), 0.5)
        )
        ys = floor - share * (floor - ceiling)
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))

    ends = ", ".join(
        f"seed {curve.seed} {_short(curve.values[0])} to {_short(curve.values[-1])}"
        for curve in curves
    )
    name = (
        f"{label}{', logarithmic axis' if logarithmic else ''}, rounds {first:g} to"
        f" {last:g}: {ends}"
    )
    drawn = [
        f'<svg class="{"spark" if small else "history"}" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label="{escape(name)}">'
    ]
    if not small:
        drawn += [
            f'<path class="axis" d="M{left} {ceiling}V{floor}H{width - 3}"/>',
            (
                f'<text x="{left - 4}" y="{ceiling + 8}"'
                f' text-anchor="end">{_short(high)}</text>'
            ),
            f'<text x="{left - 4}" y="{floor}" text-anchor="end">{_short(low)}</text>',
            f'<text x="{left}" y="{height - 4}">{first:g}</text>',
            (
                f'<text x="{width - 3}" y="{height - 4}" text-anchor="end">round'
                f" {last:g}</text>"
            ),
        ]
        if logarithmic:
            drawn.append(
                f'<text x="{left - 4}" y="{(floor + ceiling) / 2 + 4}"'
                ' text-anchor="end">log</text>'
            )
    drawn += [
        f'<polyline class="line{index % 6}" points="{points(curve)}"/>'
        for index, curve in enumerate(curves)
    ]
    return Markup("".join(drawn) + "</svg>")


def _short(value: float) -> str:
    return f"{value:.3g}"
