"""The test of a model that is used as it is, by hand, and what it refuses."""

import json

import numpy as np
import pytest
import torch

from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation import evaluate
from dpfedbench.evaluation.held_out import HeldOutMeasures, held_out, measured_in_pieces
from dpfedbench.models.choose import Choice, choose
from dpfedbench.models.gradients import Measured
from dpfedbench.models.members import save_members
from dpfedbench.models.threads import Workers
from tests.dpfedbench.training.conftest import LOTS, make_config

from .conftest import random_weights


@pytest.fixture
def config():
    return make_config(general=LOTS)


@pytest.fixture
def records(silos):
    return load_records(silos[0])


@pytest.fixture
def net(config, records):
    return config.net(records.image_shape, 10)


def metrics_of(config, silos, folder, net, theta):
    """Return the metrics of a saved model."""
    model = folder / "model.safetensors"
    metrics = folder / "metrics.json"
    save_members(model, net, [theta])
    evaluate(config, data_dir=silos[0], model_path=model, out_path=metrics)
    return json.loads(metrics.read_text())


def test_held_out_scores_are_of_the_records_that_validation_left(
    silos, config, records, net, tmp_path
):
    """Training measures the same numbers, with any number of threads."""
    theta = random_weights(net, 0, spread=0.05)
    metrics = metrics_of(config, silos, tmp_path, net, theta)
    images, labels = map(torch.from_numpy, held_out(config, records).test)
    logits = net.logits(torch.from_numpy(theta), images)
    right = 100 * (logits.argmax(dim=1) == labels).double()
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    assert metrics["records"] == len(labels) == 80
    assert metrics["accuracy"] == pytest.approx(right.mean().item())
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    of_a_class = right[labels == 3].mean().item()
    assert metrics["per_class"]["pattern3"] == pytest.approx(of_a_class, abs=1e-4)
    for threads in (1, 3):
        measures = HeldOutMeasures(config, records, choose(net), threads=threads)
        assert measures.test(theta) == {
            "test_loss": metrics["loss"],
            "test_accuracy": pytest.approx(metrics["accuracy"]),
        }


def test_validation_is_the_loss_on_the_public_records(config, records, net):
    theta = random_weights(net, 0, spread=0.05)
    images, labels = map(torch.from_numpy, held_out(config, records).validation)
    logits = net.logits(torch.from_numpy(theta), images)
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    measures = HeldOutMeasures(config, records, choose(net), threads=1)
    validated = measures.validate(theta)
    assert len(labels) == 20
    assert validated == {"validation_loss": pytest.approx(loss, rel=1e-5)}


@pytest.mark.parametrize("threads", [1, 3])
def test_records_are_measured_in_pieces_of_one_size(threads):
    """600 records are pieces of 256, 256 and 88. The results keep the order."""

    class PieceSizes:
        def evaluate(self, theta, images, labels):
            sizes = np.full(len(labels), len(labels))
            return Measured(images[:, 0] * 1.0, sizes, np.ones(len(labels)))

    choice = Choice("piece sizes", PieceSizes, "cpu")
    workers = Workers(choice, lambda gradients: gradients, threads=threads)
    records = np.arange(600)[:, None]
    losses, sizes = measured_in_pieces(workers, np.zeros(1), records, records[:, 0])
    assert losses.tolist() == list(range(600))
    assert sizes.tolist() == [256] * 512 + [88] * 88


def test_validation_records_are_the_same_for_every_seed_and_in_no_test(records):
    first = held_out(make_config({"seed": 0}, general=LOTS), records)
    second = held_out(make_config({"seed": 5}, general=LOTS), records)
    assert np.array_equal(first.validation[0], second.validation[0])
    assert np.array_equal(first.test[0], second.test[0])
    validation_images, _ = first.validation
    test_images, _ = first.test
    public = {image.tobytes() for image in validation_images}
    assert len(public) == 20
    assert public.isdisjoint(image.tobytes() for image in test_images)
    whole_test = make_config({"validation": {"tasks": 100}}, general=LOTS)
    with pytest.raises(BenchError, match=r"^validation\.tasks is 100, but"):
        held_out(whole_test, records)


def test_model_whose_loss_is_not_finite_is_refused(silos, config, net, tmp_path):
    theta = np.full(net.dimension, np.nan, np.float32)
    with pytest.raises(BenchError, match=r"the model's loss is not finite: lower"):
        metrics_of(config, silos, tmp_path, net, theta)
