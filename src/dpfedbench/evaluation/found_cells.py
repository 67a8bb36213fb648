"""Cells that a search found: a file that other runs read, and a text for readers."""

from pathlib import Path

from dpfedbench.data.records import load_records
from dpfedbench.files import atomic_path, write_json
from dpfedbench.models.genotype import Genotype
from dpfedbench.models.members import load_members
from dpfedbench.models.zoo.darts import CellModel
from dpfedbench.run import Run


def write_cells(
    run: Run,
    *,
    data_dir: Path,
    model_path: Path,
    genotype_path: Path,
    text_path: Path,
) -> None:
    """Write genotype.json and a text of its cells.

    Args:
        run: a run whose network searches.
        data_dir: folder of the data set.
        model_path: model file. The first member has the architecture weights.
        genotype_path: path of genotype.json.
        text_path: path of the text.

    Raises:
        BenchError: a file is missing or damaged.
    """
    dataset = load_records(data_dir)
    net = run.trained_net(dataset.image_shape, len(dataset.class_names))
    theta = load_members(model_path, net)[0]
    assert isinstance(run.model, CellModel)
    genotype = run.model.space.genotype(theta[net.blocks["architecture"]])
    write_json(genotype_path, genotype.to_json())
    with atomic_path(text_path) as temporary:
        temporary.write_text(text_of_cells(genotype), encoding="utf-8")


def text_of_cells(genotype: Genotype) -> str:
    """Return the sum that each node of each cell computes, one line for each node."""
    lines = []
    for kind, nodes in genotype.cells.items():
        states = ["cell before last", "last cell"]
        states += [f"node {node}" for node in range(len(nodes))]
        lines.append(f"{kind} cell")
        for node, edges in enumerate(nodes):
            terms = [f"{operation}({states[state]})" for operation, state in edges]
            lines.append(f"  node {node} = {' + '.join(terms)}")
    return "\n".join(lines) + "\n"
