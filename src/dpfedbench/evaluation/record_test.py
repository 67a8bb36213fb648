"""The test of a model that is used as it is: its accuracy on the test part, less what validation took of it."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from dpfedbench.config import RunConfig
from dpfedbench.data.records import RecordDataset, load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.intervals import mean_interval
from dpfedbench.files import write_json
from dpfedbench.kernels import choose
from dpfedbench.models.cnn import Cnn
from dpfedbench.models.gradients import Found, joined
from dpfedbench.models.members import load_members
from dpfedbench.models.net import Net
from dpfedbench.randomness import stream

_PIECE = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Images uint8 [n, H, W, C] and labels [n] that no client holds, of two kinds with no record in both.

    Attributes:
        validation: declared public; may be looked at in training.
        test: what accuracies are of.
    """

    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def held_out(config: RunConfig, dataset: RecordDataset) -> HeldOut:
    """Take `validation.tasks` records out of the test part: the same for every seed, and whether or not a run looks at
    them, so that all are tested on the same records.

    Raises:
        BenchError: that would be all of it.
    """
    places = dataset.splits["test"]
    count = config.validation.tasks
    if count >= len(places):
        raise BenchError(
            f"validation.tasks is {count}, but the test part of {dataset.name} has {len(places)} records: lower it"
        )
    order = places[stream(0, "public-validation").permutation(len(places))]
    validation, test = np.sort(order[:count]), np.sort(order[count:])
    return HeldOut(
        validation=(np.asarray(dataset.images[validation]), np.asarray(dataset.labels[validation])),
        test=(np.asarray(dataset.images[test]), np.asarray(dataset.labels[test])),
    )


def network(config: RunConfig, dataset: RecordDataset) -> Net:
    """The network of a run over records.

    Raises:
        BenchError: the data set has another number of classes than the run's task, or images of another size.
    """
    if len(dataset.class_names) != config.task.ways:
        raise BenchError(f"task.ways is {config.task.ways}, but {dataset.name} has {len(dataset.class_names)} classes")
    shape, classes, model = dataset.image_shape, len(dataset.class_names), config.model

    def build() -> Cnn:
        return Cnn(
            image_shape=shape, classes=classes, pixel_mean=model.pixel_mean, pixel_deviation=model.pixel_deviation
        )

    return Net(build, input_shape=shape, outputs=classes)


def evaluate_in_pieces(
    evaluate: Callable[[np.ndarray, np.ndarray], Found],
    images: np.ndarray,
    labels: np.ndarray,
    *,
    over: Callable[..., Iterable[Found]] = map,
) -> Found:
    """Losses and right answers, in pieces of fixed size.

    So threads change no bit, and memory does not grow with the records.

    Args:
        evaluate: the same of a piece, of `Gradients`.
        images: uint8 [n, H, W, C].
        labels: int64 [n].
        over: `map`, or a thread pool's.
    """
    starts = range(0, len(labels), _PIECE)
    pieces = list(over(lambda at: evaluate(images[at : at + _PIECE], labels[at : at + _PIECE]), starts))
    return joined(pieces)


def record_test(config: RunConfig, *, data_dir: Path, model_path: Path, out_path: Path) -> None:
    """Test a trained model and write metrics.json.

    The interval is over records, for this one model: see `evaluation.intervals`. Accuracies are in percent.

    Raises:
        BenchError: data or model missing or damaged.
    """
    dataset = load_records(data_dir)
    net = network(config, dataset)
    theta = load_members(Path(model_path), net)[0]
    images, labels = held_out(config, dataset).test
    worker = choose(net).make()
    losses, correct, _ = evaluate_in_pieces(lambda *piece: worker.evaluate(theta, *piece), images, labels)
    interval = mean_interval((100.0 * correct).tolist(), over="records")
    write_json(
        out_path,
        {
            "dataset": config.dataset,
            "method": config.method,
            "seed": config.seed,
            "accuracy": interval.mean,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "loss": float(losses.mean()),
            "records": len(labels),
            "per_class": {
                name: round(100 * float(correct[labels == label].mean()), 4)
                for label, name in enumerate(dataset.class_names)
                if (labels == label).any()
            },
        },
    )
