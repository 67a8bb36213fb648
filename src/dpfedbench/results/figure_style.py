"""The common style of all figures: colours, axes, and the legend with the notes below
the axes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend

from dpfedbench.evaluation.intervals import Interval

# Okabe and Ito's colours, told apart with any colour vision; markers and dashes tell
# the lines apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
SIGNS = "●■▲◆▼✚"
DPI = 160


def plain(value: float, place: float | None) -> str:
    """A number of an axis as it is."""
    return f"{value:g}"


def half_widths(interval: Interval) -> list[list[float]] | None:
    """An interval as matplotlib takes an error; None where there is none."""
    low = interval.mean - interval.low
    high = interval.high - interval.mean
    return None if math.isnan(low) else [[low], [high]]


def tidied(axes: Axes, spines: Iterable[str] = ("top", "right"), **grid: Any) -> None:
    """Put a light grid behind what is drawn, and remove the frame where it says
    nothing.
    """
    axes.grid(**{"color": "#e3e3e3", "linewidth": 0.6, **grid})
    axes.set_axisbelow(True)
    axes.spines[list(spines)].set_visible(False)


def wrapped(said: Iterable[str], width: int = 94) -> str:
    """Sentences in lines of at most `width` letters; an equation stays on one line."""
    whole = [text.replace(" = ", "\u00a0=\u00a0") for text in said]
    return "\n".join(
        line for text in whole for line in textwrap.wrap(text, width)
    ).replace("\u00a0", " ")


def legend_below(
    figure: Figure, handles: Sequence[Any], notes: str, *, columns: int, size: float
) -> Legend:
    """A legend below the axes of a figure with constrained layout, with notes in small
    print above its entries.

    It has as many columns as the figure is wide enough for, and `columns` at the most;
    `size` is the text's, in points.
    """
    for count in range(columns, 0, -1):
        legend = figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=count,
            fontsize=size,
            frameon=False,
        )
        legend.set_title(notes, prop=FontProperties(size=size - 0.5))
        legend.set_alignment("left")
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    return legend
