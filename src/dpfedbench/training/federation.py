"""The federation of a run: its clients' data, its model, and the model's tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.data.holdings import Records, Tasks
from dpfedbench.data.text_tasks import TextTasks
from dpfedbench.evaluation.features import features_of
from dpfedbench.evaluation.few_shot import FewShotMeasures
from dpfedbench.evaluation.held_out import HeldOutMeasures, NoMeasures, check_classes
from dpfedbench.evaluation.next_word import TextMeasures
from dpfedbench.models.choose import Choice, choose
from dpfedbench.models.references import reference
from dpfedbench.parts.clipping.reference import MedianOfRun
from dpfedbench.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Federation:
    """Everything that a training reads.

    Attributes:
        net: the model.
        held: the data of the clients: `data.holdings.Tasks`, `Records`, or a class like
            them.
        gradients: implementation of the model's gradients.
        measures: validation and test of the model during training.
        weights: initial weights, float32 [d]; None: the network's random
            initialisation, as in an audit, whose releases do not depend on them.
    """

    net: Any
    held: Any
    gradients: Choice
    measures: Any = dataclasses.field(default_factory=NoMeasures)
    weights: np.ndarray | None = None

    @classmethod
    def load(
        cls,
        run: Run,
        *,
        data_dir: Path,
        clients_dir: Path,
        device: str = "cpu",
        kernels: bool = True,
        threads: int = 1,
        references: Mapping[str, Path] | None = None,
    ) -> Federation:
        """Read the federation of a run; the arguments are those of `engine.train`.

        Raises:
            BenchError: data are missing or damaged, or the model does not fit them.
        """
        held = _read_clients(run, data_dir, clients_dir, references)
        outputs = run.task.ways
        if run.client_data == "records":
            outputs = len(held.dataset.class_names)
        net = run.trained_net(held.dataset.image_shape, outputs, references)
        net.check()
        net.words = getattr(held.dataset, "words", ())
        gradients = choose(net, device=device, enabled=kernels)
        by_record = run.computes_within_records or any(
            spec.unit == "record" for spec in run.private_sums
        )
        # Compiled passes exist for known networks only, and the settings checked those.
        if by_record and run.model.record_level and gradients.name.startswith("torch"):
            net.refuse_record_level()
        measures: Any = NoMeasures()
        # Held-out records of a pre-training would be of other classes than the
        # meta-test.
        if run.trained and not run.pretrains:
            measures = _create_measures(
                run, held.dataset, gradients, threads, references
            )
        return cls(
            net=net,
            held=held,
            gradients=gradients,
            measures=measures,
            weights=run.initial.weights(
                net,
                seed=run.seed,
                dataset=run.dataset,
                references=run.references,
                files=references or {},
            ),
        )


def _create_measures(
    run: Run,
    dataset: Any,
    choice: Choice,
    threads: int,
    references: Mapping[str, Path] | None,
) -> Any:
    if run.client_data == "records":
        check_classes(run, dataset)
        return HeldOutMeasures(run, dataset, choice, threads=threads, files=references)
    if run.task.text is not None:
        return TextMeasures(run=run, known=dataset, choice=choice, threads=threads)
    return FewShotMeasures(run=run, dataset=dataset, choice=choice, threads=threads)


def has_owners(held: Any) -> bool:
    """Return whether the data set of the clients knows the owners of its examples."""
    dataset = getattr(held, "dataset", None)
    return getattr(dataset, "owners", None) is not None


def read_first_threshold(run: Run, references: Mapping[str, Path]) -> float | None:
    """Return the first threshold that a rule reads from another run, or None."""
    for rule in (spec.clipping for spec in run.all_sums):
        if isinstance(rule, MedianOfRun):
            earlier = run.references[rule.file].folder
            return rule.first_threshold(reference(references, rule.file, earlier), run)
    return None


def _read_clients(
    run: Run, data_dir: Path, clients_dir: Path, files: Mapping[str, Path] | None
) -> Any:
    """Return the data of a run's clients."""
    if run.client_data == "records":
        held = Records(data_dir, clients_dir)
        share = run.clients.held_out_share
        if share:
            held.leave_out(share, seed=run.seed)
        held.images = features_of(run, held.dataset, held.record_indices, files)
        if share:
            held.test_images = features_of(
                run, held.dataset, held.test_record_indices, files
            )
        return held
    support = run.clients.support_per_class
    query = run.clients.query_per_class
    if run.task.text is not None:
        return TextTasks(
            data_dir, clients_dir, run.task.text, support=support, query=query
        )
    return Tasks(
        data_dir, clients_dir, support_per_class=support, query_per_class=query
    )
