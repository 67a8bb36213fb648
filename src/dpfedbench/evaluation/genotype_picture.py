"""Genotype of a search: its file, and a picture of the operations between states."""

from __future__ import annotations

import pathlib
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path

from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, write_json
from dpfedbench.method import Method
from dpfedbench.models.genotype import OPERATIONS, Edge, Genotype
from dpfedbench.models.members import load_members
from dpfedbench.models.zoo.darts import CellModel

# Okabe and Ito's colours, with the light ones darkened so that their text is legible.
# Each line also has its name beside it.
_COLOURS = (
    "#000000",
    "#B87700",
    "#3C8DBC",
    "#6B6B6B",
    "#0072B2",
    "#009E73",
    "#D55E00",
    "#B5568C",
)
_DASHES = ("-", ":", ":", "--", "-", "-", "-.", "-.")
_STYLES = dict(zip(OPERATIONS, zip(_COLOURS, _DASHES, strict=True), strict=True))
_NAMES = {
    "max_pool_3x3": "max pooling 3×3",
    "avg_pool_3x3": "mean pooling 3×3",
    "skip_connect": "skip",
    "sep_conv_3x3": "separable 3×3",
    "sep_conv_5x5": "separable 5×5",
    "dil_conv_3x3": "dilated 3×3",
    "dil_conv_5x5": "dilated 5×5",
}
_STEP, _BOX, _HALF = (
    2.2,
    0.55,
    0.2,
)  # distance between nodes; half a box's width and height
_FIRST, _LANE = (
    0.75,
    0.36,
)  # distance of the first lane from the boxes, and between lanes
_ROUND = 0.12
_DPI = 160


def write_cells(
    run: Method,
    *,
    data_dir: pathlib.Path,
    model_path: pathlib.Path,
    genotype_path: pathlib.Path,
    picture_path: pathlib.Path,
) -> None:
    """Write genotype.json and a picture of its cells.

    For released weights both are post-processing.

    Raises:
        BenchError: the run's network does not search, or a file is missing, damaged or
            of another run.
    """
    dataset = load_records(data_dir)
    net = run.net(dataset.image_shape, len(dataset.class_names))
    if "architecture" not in net.blocks:
        raise BenchError(
            f"{run.folder} has a network of kind {run.model.kind}, which searches no"
            " cells"
        )
    theta = load_members(model_path, net)[0]
    assert isinstance(run.model, CellModel)
    genotype = run.model.space.genotype(theta[net.blocks["architecture"]])
    write_json(genotype_path, genotype.to_json())
    figure = draw_cells(genotype, f"{run.title}, {run.dataset}, seed {run.seed}")
    with atomic_path(picture_path) as temporary:
        figure.savefig(temporary, format="png", dpi=_DPI)


def draw_cells(genotype: Genotype, title: str = "") -> Figure:
    """Draw a genotype: one panel per kind of cell, with an optional title above.

    Boxes are states: the outputs of the two cells before, and the nodes in order, whose
    concatenated maps are the output. Each node reads two states. A line is the
    operation through which a node reads a state; its colour, its dashes and its text
    name it.
    """
    nodes = genotype.space.nodes
    panels = len(genotype.cells)
    height = 2 * (_FIRST + _LANE * nodes)
    figure = Figure(
        figsize=(1.6 * (_STEP * nodes + 2.4) * 0.62, 0.95 * height * panels + 0.4),
        dpi=_DPI,
        layout="constrained",
    )
    rows = figure.subplots(panels, 1, squeeze=False)[:, 0]
    for axes, (kind, cell) in zip(rows, genotype.cells.items(), strict=True):
        _draw(axes, cell)
        axes.set_title(f"{kind} cell", fontsize=10)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _draw(axes: Axes, cell: tuple[tuple[Edge, ...], ...]) -> None:
    """Draw one cell, with its inputs at the left and its nodes from left to right."""
    positions = [
        (0.0, 0.3),
        (0.0, -0.3),
        *((_STEP * (1 + node), 0.0) for node in range(len(cell))),
    ]
    for node, (first, second) in enumerate(cell):
        # The cell before last uses the lanes above, the last cell those below. For two
        # nodes, the earlier one uses the lane above.
        upper, lower = (second, first) if first[1] == 1 else (first, second)
        for side, (operation, state) in ((1, upper), (-1, lower)):
            _line(
                axes,
                positions[state],
                positions[2 + node],
                side * (_FIRST + _LANE * node),
                operation,
                node,
            )
    names = ["cell before last", "last cell", *map("node {}".format, range(len(cell)))]
    for (x, y), name in zip(positions, names, strict=True):
        wide = _BOX + (0.15 if x == 0 else 0.0)
        look: dict[str, Any] = {
            "facecolor": "#F2F2F2",
            "edgecolor": "black",
            "linewidth": 1,
            "zorder": 4,
        }
        axes.add_patch(Rectangle((x - wide, y - _HALF), 2 * wide, 2 * _HALF, **look))
        axes.annotate(name, (x, y), ha="center", va="center", fontsize=8, zorder=5)
    highest = _FIRST + _LANE * (len(cell) - 1) + 0.25
    axes.set_xlim(-0.8, positions[-1][0] + _BOX + 0.1)
    axes.set_ylim(-highest, highest)
    axes.set_axis_off()


def _line(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    lane: float,
    operation: str,
    node: int,
) -> None:
    """Draw a line from a box to a node, along a lane of its own."""
    colour, dashes = _STYLES[operation]
    up = 1 if lane > 0 else -1
    # Lines to later nodes leave the box further to the left, so that no two lines
    # overlap.
    x0 = start[0] + 0.45 - 0.11 * min(node, 7)
    x1 = end[0] - 0.35
    turn = _ROUND * up
    points = [
        (x0, start[1] + up * _HALF),
        (x0, lane - turn),
        (x0, lane),
        (x0 + _ROUND, lane),
        (x1 - _ROUND, lane),
        (x1, lane),
        (x1, lane - turn),
        (x1, end[1] + up * (_HALF + 0.02)),
    ]
    codes = [
        Path.MOVETO,
        Path.LINETO,
        Path.CURVE3,
        Path.CURVE3,
        Path.LINETO,
        Path.CURVE3,
        Path.CURVE3,
        Path.LINETO,
    ]
    look: dict[str, Any] = {
        "arrowstyle": "-|>",
        "mutation_scale": 9,
        "linewidth": 1.6,
        "linestyle": dashes,
    }
    axes.add_patch(
        FancyArrowPatch(path=Path(points, codes), color=colour, zorder=2, **look)
    )
    look = {"color": colour, "fontsize": 8, "ha": "right", "va": "center", "zorder": 3}
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    axes.annotate(_NAMES[operation], (x1 - _ROUND - 0.05, lane), bbox=box, **look)
