"""Pictures of cells: every operation is in them, by name, from the state that it reads
to its node.
"""

import numpy as np
from matplotlib.patches import FancyArrowPatch

from dpfedbench.evaluation.genotype_picture import draw_cells
from dpfedbench.models.genotype import Space


def test_cell_picture_names_every_operation(tmp_path):
    genotype = Space().random(np.random.default_rng(0))
    figure = draw_cells(genotype, "found")
    assert [axes.get_title() for axes in figure.axes] == [
        "normal cell",
        "reduction cell",
    ]
    for axes, cell in zip(figure.axes, genotype.cells.values(), strict=True):
        labels = [text.get_text() for text in axes.texts]
        words = {
            "max": "max pooling",
            "avg": "mean pooling",
            "skip": "skip",
            "sep": "separable",
            "dil": "dilated",
        }
        for node in cell:
            for operation, _ in node:
                name = words[operation.split("_")[0]]
                labels.remove(
                    name
                    if name == "skip"
                    else f"{name} {operation[-1]}×{operation[-1]}"
                )
        assert labels == [
            "cell before last",
            "last cell",
            "node 0",
            "node 1",
            "node 2",
            "node 3",
        ]
        lines = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
        assert len(lines) == 8
    figure.savefig(tmp_path / "cells.png")
    assert (tmp_path / "cells.png").stat().st_size > 10_000


def test_cell_picture_has_one_lane_for_each_edge():
    for seed in range(5):
        figure = draw_cells(Space().random(np.random.default_rng(seed)))
        for axes in figure.axes:
            lanes = [
                text.xy[1]
                for text in axes.texts
                if "node" not in text.get_text() and "cell" not in text.get_text()
            ]
            assert len(set(lanes)) == len(lanes) == 8
