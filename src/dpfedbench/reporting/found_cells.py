"""From a searched model to its genotype and a picture of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, write_json
from dpfedbench.method import Method
from dpfedbench.models.members import load_members
from dpfedbench.models.zoo.darts import CellModel
from dpfedbench.reporting.cell_graph import draw_cells


def write_cells(run: Method, *, data_dir: Path, model_path: Path, genotype_path: Path, picture_path: Path) -> None:
    """Write genotype.json and a picture of its cells; of released weights both are post-processing.

    Raises:
        BenchError: the run's network searches nothing, or a file is missing, damaged or not this run's.
    """
    if "architecture" not in (blocks := _net(run, data_dir).blocks):
        raise BenchError(f"{run.folder} has a network of kind {run.model.kind}, which searches no cells")
    theta = load_members(model_path, _net(run, data_dir))[0]
    found = run.part(CellModel).space.genotype(theta[blocks["architecture"]])
    write_json(genotype_path, found.to_json())
    figure = draw_cells(found, f"{run.title}, {run.dataset}, seed {run.seed}")
    with atomic_path(picture_path) as temporary:
        figure.savefig(temporary, format="png", dpi=160)


def _net(run: Method, data_dir: Path) -> Any:
    dataset = load_records(data_dir)
    return run.net(dataset.image_shape, len(dataset.class_names))
