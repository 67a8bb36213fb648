"""Test of a model without adaptation, on the test part without validation records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dpfedbench.data.records import RecordDataset, held_out_places, load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.features import features_of
from dpfedbench.evaluation.intervals import mean_interval, write_metrics
from dpfedbench.models.choose import Choice, choose
from dpfedbench.models.gradients import Gradients
from dpfedbench.models.members import load_members
from dpfedbench.models.threads import Workers
from dpfedbench.results_format import MEASURED
from dpfedbench.run import Run

_PIECE = 256


class HeldOut(NamedTuple):
    """Records that no client holds: model inputs [n, ...] and labels [n] of two kinds.

    The kinds are disjoint. `validation` is declared public, and training may use it.
    Accuracies are measured on `test`.
    """

    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def held_out(
    run: Run, dataset: RecordDataset, files: Mapping[str, Path] | None = None
) -> HeldOut:
    """Return both kinds of records that no client holds, as model inputs.

    Args:
        run: the run.
        dataset: its data set.
        files: as for `features_of`.

    Raises:
        BenchError: no record would be left for the test.
    """
    rows = held_out_places(dataset, run.validation.tasks)
    images = features_of(run, dataset, rows, files)
    validation, test = zip(
        images, (dataset.labels[indices] for indices in rows), strict=True
    )
    return HeldOut(validation=validation, test=test)


def check_classes(run: Run, dataset: Any) -> None:
    """Refuse a task whose number of classes is not the data set's.

    Raises:
        BenchError: the message names both numbers.
    """
    if len(dataset.class_names) != run.task.ways:
        raise BenchError(
            f"task.ways is {run.task.ways}, but {dataset.name} has"
            f" {len(dataset.class_names)} classes"
        )


def measured_in_pieces(
    workers: Workers[Gradients],
    theta: np.ndarray,
    images: np.ndarray,
    labels: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return records' losses float64 [n], and the share of right answers of each [n].

    Pieces have a fixed size. Threads therefore change no bit, and memory does not grow
    with the records.
    """

    def piece(start: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = slice(start, start + _PIECE)
        with workers.worker() as gradients:
            measured = gradients.evaluate(theta, images[chosen], labels[chosen])
        return measured.losses, measured.right / measured.of

    with workers.running() as pool:
        losses, right = zip(
            *pool.map(piece, range(0, len(labels), _PIECE)), strict=True
        )
    return np.concatenate(losses), np.concatenate(right)


class NoMeasures:
    """Base of measures of a model in training, which measures nothing."""

    columns: ClassVar[tuple[str, ...]] = ()

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Return measures on data that are declared public and may drive the noise.

        They are values by their columns in the history.
        """
        return {}

    def test(self, theta: np.ndarray) -> dict[str, float]:
        """Return measures on test data, which training never reads."""
        return {}


class HeldOutMeasures(NoMeasures):
    """Measures of a model without adaptation.

    They use a public validation split, and the rest of the test part. CPU `threads`
    change no bit; `files` are files of other jobs, by name.
    """

    columns = MEASURED

    def __init__(
        self,
        run: Run,
        dataset: RecordDataset,
        choice: Choice,
        *,
        threads: int,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        self._held = held_out(run, dataset, files)
        self._workers: Workers[Gradients] = Workers(
            choice, lambda gradients: gradients, threads=threads
        )

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Return the loss."""
        losses, _ = measured_in_pieces(self._workers, theta, *self._held.validation)
        return {"validation_loss": float(losses.mean())}

    def test(self, theta: np.ndarray) -> dict[str, float]:
        """Return the loss, and the accuracy in percent."""
        losses, right = measured_in_pieces(self._workers, theta, *self._held.test)
        return {
            "test_loss": float(losses.mean()),
            "test_accuracy": 100 * float(right.mean()),
        }


def record_test(
    run: Run,
    *,
    data_dir: Path,
    model_path: Path,
    out_path: Path,
    kernels: bool = True,
    references: Mapping[str, Path] | None = None,
) -> None:
    """Test a trained model and write metrics.json.

    `references` are files of other runs, as for `engine.train`.

    The interval is over records, for this one model: see `evaluation.intervals`.
    Accuracies are in percent.

    Raises:
        BenchError: data or model are missing, damaged, or of another run; or the model
            is not finite.
    """
    dataset = load_records(data_dir)
    check_classes(run, dataset)
    net = run.trained_net(dataset.image_shape, len(dataset.class_names), references)
    theta = load_members(Path(model_path), net)[0]
    images, labels = held_out(run, dataset, references).test
    workers: Workers[Gradients] = Workers(
        choose(net, enabled=kernels), lambda gradients: gradients
    )
    losses, right = measured_in_pieces(workers, theta, images, labels)
    if not np.isfinite(losses).all():
        raise BenchError(
            f"{model_path}: the model's loss is not finite: lower a learning rate, or"
            " the noise"
        )
    per_class = {
        name: round(100 * float(right[labels == label].mean()), 4)
        for label, name in enumerate(dataset.class_names)
        if (labels == label).any()
    }
    interval = mean_interval((100.0 * right).tolist())
    write_metrics(
        out_path,
        run,
        interval,
        loss=float(losses.mean()),
        records=len(labels),
        per_class=per_class,
    )
