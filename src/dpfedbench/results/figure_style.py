"""What all figures share: the style, curves with bands, axes of ε, and the legend with
notes below the axes.
"""

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import LogLocator, NullLocator

styled = matplotlib.style.context(str(Path(__file__).with_name("figures.mplstyle")))
"""Decorator of a function in which figures have the common style."""

# Okabe and Ito's colours, told apart with any colour vision; markers and dashes tell
# the lines apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DPI = 160
NOTES = "Description"
"""Name of a figure's notes in the metadata of its PNG."""


def draw_curve(axes: Axes, curve: pd.DataFrame, marker: str, **look: Any) -> None:
    """Draw the values of a curve over x, with a band from low to high.

    A curve without any x is a level line. A point at infinity has no place on the axis.
    """
    band = {
        "color": look["color"],
        "alpha": 0.18,
        "linewidth": 0,
    }
    if curve["x"].isna().all():
        first = curve.iloc[0]
        axes.axhline(first["value"], **look)
        axes.axhspan(first["low"], first["high"], **band)
        return
    numbers = curve[["x", "value", "low", "high"]].astype(float)
    shown = numbers[np.isfinite(numbers["x"])]
    axes.plot(
        "x",
        "value",
        data=shown,
        marker=marker,
        **look,
    )
    axes.fill_between(
        "x",
        "low",
        "high",
        data=shown,
        **band,
    )
    if len(shown) == 1:
        ends = [shown["value"] - shown["low"], shown["high"] - shown["value"]]
        axes.errorbar(
            shown["x"],
            shown["value"],
            ends,
            capsize=3,
            ecolor=look["color"],
        )


def set_log_axis(axis: Any) -> None:
    """Give a logarithmic axis ticks with plain decimals, as many as there is room for."""
    low, high = axis.get_view_interval()
    steps = (1, 2, 5) if high / low < 300 else (1,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def finite_ends(values: Any, margin: float) -> tuple[float, float]:
    """Return the ends of a logarithmic axis for those of some ε that are finite."""
    values = np.asarray(values, float)
    positive = values[np.isfinite(values) & (values > 0)]
    if not len(positive):
        return 0.5, 8.0
    return positive.min() / margin, positive.max() * margin


def wrapped(sentences: Iterable[str], width: int = 94) -> str:
    """Return sentences in lines of at most `width` letters; an equation stays on one
    line.
    """
    lines = [
        line
        for text in sentences
        for line in textwrap.wrap(text.replace(" = ", "\u00a0=\u00a0"), width)
    ]
    return "\n".join(lines).replace("\u00a0", " ")


def legend_below(figure: Figure, handles: Sequence[Any], notes: str) -> Legend:
    """Put a legend below the axes of a figure, with notes in small print above its
    entries.

    It has as many columns as the figure is wide enough for, and four at the most.
    """
    for columns in (4, 3, 2, 1):
        legend = figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=columns,
            fontsize=8,
            title=notes,
            title_fontsize=7.5,
            alignment="left",
        )
        if legend.get_window_extent().width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    return legend


@styled
def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, without its notes: they are the text `NOTES` in the file's
    metadata, which the page shows below the image.
    """
    (legend,) = figure.legends
    notes = legend.get_title()
    text = " ".join(notes.get_text().split())
    notes.set_text("")
    figure.savefig(path, format="png", metadata={NOTES: text})


@styled
def save_pdf(figure: Figure, path: Path) -> None:
    """Write a figure as PDF, for a paper to include unchanged: with fonts as publishers
    want them (TrueType), and no date, so that it has the same bytes each time.
    """
    figure.savefig(
        path,
        format="pdf",
        metadata={"CreationDate": None},
    )
