"""Networks of a run: the one that is trained, and the one that is tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedbench.config.part import states
from dpfedbench.run import Run, sections_within

if TYPE_CHECKING:
    from dpfedbench.models.net import Net


def trained_net(
    run: Run,
    image_shape: tuple[int, ...],
    classes: int,
    files: Mapping[str, Path] | None = None,
) -> Net:
    """Return the model that a run trains.

    Args:
        run: the run.
        image_shape: shape of one input of the data set.
        classes: number of training classes; a pre-trained model has one output for
            each.
        files: files of other runs, by name (`Run.references`).

    Raises:
        BenchError: a file that the model needs is missing or damaged.
    """
    outputs = classes if run.pretrains else run.task.outputs
    model = run.model.resolved(files or {})
    net: Net = model.net(input_shape=image_shape, outputs=outputs)
    if run.trained:
        net = run.client_update.net(net)
    return net


def tested_net(run: Run, image_shape: tuple[int, ...]) -> Net:
    """Return the model that the meta-test adapts to its tasks."""
    net: Net = run.model.net(input_shape=image_shape, outputs=run.task.outputs)
    if run.trained and not run.pretrains:
        net = run.client_update.net(net)
    return net


def adapted_tensors(run: Run, net: Net) -> Sequence[str] | None:
    """Return the tensors that adaptation to a task changes; None: all."""
    if not run.trained or run.pretrains:
        return None
    tensors: Sequence[str] | None = run.client_update.adapted(net)
    return tensors


def computes_within_records(run: Run) -> bool:
    """Return whether few-shot clients compute each example's gradient from it alone."""
    return run.trained and run.client_update.within_records(run)


def references_of_network(run: Run) -> dict[str, Run]:
    """Return the other runs whose files the network is made of, by the file's name."""
    references: dict[str, Run] = {}
    for section in sections_within(run.model):
        if states(type(section), "references"):
            references |= section.references(run)
    return references


def shares_all(run: Run) -> bool:
    """Return whether clients share all coordinates of the model with the server."""
    by_mask = type(run).shared_mask is not Run.shared_mask
    return not by_mask and run.shared in ("all", ("all",), ["all"])
