"""The test of a model that is used as it is: its accuracy on the test part, less what validation took of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.data.records import RecordDataset, held_out_places, load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.features import features_of
from dpfedbench.evaluation.intervals import mean_interval, write_metrics
from dpfedbench.kernels import choose
from dpfedbench.method import Method
from dpfedbench.models.gradients import Choice, Gradients, Workers
from dpfedbench.models.members import load_members
from dpfedbench.results_format import MEASURED

_PIECE = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Records as the model reads them [n, ...] and labels [n] that no client holds, of two kinds, none in both.

    Attributes:
        validation: declared public; may be looked at in training.
        test: what accuracies are of.
    """

    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def held_out(run: Method, dataset: RecordDataset, files: Mapping[str, Path] | None = None) -> HeldOut:
    """The two kinds of records that no client holds, as the model reads them; `files` as `features_of` has them.

    Raises:
        BenchError: nothing would be left to test on.
    """
    places = held_out_places(dataset, run.validation.tasks)
    images = features_of(run, dataset, places, files)
    validation, test = zip(images, (dataset.labels[some] for some in places), strict=True)
    return HeldOut(validation=validation, test=test)


def check_classes(run: Method, dataset: Any) -> None:
    """Refuse a task of another number of classes than the data set's.

    Raises:
        BenchError: says both numbers.
    """
    if len(dataset.class_names) != run.task.ways:
        raise BenchError(f"task.ways is {run.task.ways}, but {dataset.name} has {len(dataset.class_names)} classes")


def evaluate_in_pieces(
    evaluate: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    images: np.ndarray,
    labels: np.ndarray,
    *,
    over: Callable[..., Iterable[tuple[np.ndarray, np.ndarray]]] = map,
) -> tuple[np.ndarray, np.ndarray]:
    """Losses float64 [n] and the share of each record's answers that are right [n]: in pieces of fixed size.

    So threads change no bit, and memory does not grow with the records.

    Args:
        evaluate: the same of a piece.
        images: uint8 [n, H, W, C].
        labels: int64 [n].
        over: applies `evaluate` to the pieces, in order; `pool.map` for several threads.
    """
    starts = range(0, len(labels), _PIECE)
    pieces = [(images[start : start + _PIECE], labels[start : start + _PIECE]) for start in starts]
    scores = list(over(evaluate, *zip(*pieces, strict=True)))
    return np.concatenate([losses for losses, _ in scores]), np.concatenate([right for _, right in scores])


class HeldOutMeasures:
    """What a model that is used as it is is measured on in training: a public validation split, and the test part.

    Args:
        run: gives the sizes.
        dataset: whose test part is held out.
        choice: how the model is computed.
        threads: CPU threads; they change no bit.
        files: of other jobs, by name.
    """

    columns = MEASURED

    def __init__(
        self, run: Method, dataset: RecordDataset, choice: Choice, *, threads: int,
        files: Mapping[str, Path] | None = None,
    ) -> None:  # fmt: skip
        self._held = held_out(run, dataset, files)
        self._workers: Workers[Gradients] = Workers(choice, lambda gradients: gradients, threads=threads)

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """The loss on the public validation split, which may drive the noise."""
        loss, _ = self._measure(theta, *self._held.validation)
        return {"validation_loss": loss}

    def test(self, theta: np.ndarray) -> dict[str, float]:
        """Loss and accuracy in percent on the test part, less the validation split."""
        loss, accuracy = self._measure(theta, *self._held.test)
        return {"test_loss": loss, "test_accuracy": accuracy}

    def _measure(self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        def piece(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            with self._workers.worker() as gradients:
                measured = gradients.evaluate(theta, images, labels)
            return measured.losses, measured.right / measured.of

        with self._workers.running() as pool:
            losses, right = evaluate_in_pieces(piece, images, labels, over=pool.map)
        return float(losses.mean()), 100 * float(right.mean())


class NoMeasures:
    """For runs that have nothing to be measured on while they train."""

    columns: tuple[str, ...] = ()

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Nothing."""
        return {}

    def test(self, theta: np.ndarray) -> dict[str, float]:
        """Nothing."""
        return {}


def record_test(
    run: Method, *, data_dir: Path, model_path: Path, out_path: Path, kernels: bool = True,
    references: Mapping[str, Path] | None = None,
) -> None:  # fmt: skip
    """Test a trained model and write metrics.json; `references` are files of other runs, as `engine.train` has them.

    The interval is over records, for this one model: see `evaluation.intervals`. Accuracies are in percent.

    Raises:
        BenchError: data or model missing, damaged, or not this run's; or a model that is not finite.
    """
    dataset = load_records(data_dir)
    check_classes(run, dataset)
    net = run.net(dataset.image_shape, len(dataset.class_names), references)
    theta = load_members(Path(model_path), net)[0]
    images, labels = held_out(run, dataset, references).test
    gradients = choose(net, enabled=kernels).make()

    def piece(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        measured = gradients.evaluate(theta, images, labels)
        return measured.losses, measured.right / measured.of

    losses, correct = evaluate_in_pieces(piece, images, labels)
    if not np.isfinite(losses).all():
        raise BenchError(f"{model_path}: the model's loss is not finite: lower a learning rate, or the noise")
    interval = mean_interval((100.0 * correct).tolist(), over="records")
    per_class = {
        name: round(100 * float(correct[labels == label].mean()), 4)
        for label, name in enumerate(dataset.class_names)
        if (labels == label).any()
    }
    write_metrics(out_path, run, interval, loss=float(losses.mean()), records=len(labels), per_class=per_class)
