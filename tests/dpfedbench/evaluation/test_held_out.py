"""The test of a model that is used as it is, by hand, and what it refuses."""

import json
from types import SimpleNamespace

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
from tests.dpfedbench.training.conftest import lots_config


@pytest.fixture
def records(silos):
    return load_records(silos[0])


@pytest.fixture
def net(records):
    return lots_config().trained_net(records.image_shape, 10)


def metrics_of(silos, folder, net, theta):
    """Return the metrics of a saved model."""
    model = folder / "model.safetensors"
    metrics = folder / "metrics.json"
    save_members(model, net, [theta])
    evaluate(lots_config(), data_dir=silos[0], model_path=model, out_path=metrics)
    return json.loads(metrics.read_text())


def test_held_out_scores_are_of_their_own_records(silos, records, net, tmp_path):
    """The test is on the 80 records that validation on 20 left. Training measures the
    same numbers, with any number of threads.
    """
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(net.dimension)
    theta = (net.initial(rng) + 0.05 * noise).astype(np.float32)

    def loss_and_right(held):
        images, labels = map(torch.from_numpy, held)
        logits = net.logits(torch.from_numpy(theta), images)
        right = 100 * (logits.argmax(dim=1) == labels).double()
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        return pytest.approx(loss, rel=1e-5), right, labels

    held = held_out(lots_config(), records)
    loss, right, labels = loss_and_right(held.test)
    metrics = metrics_of(silos, tmp_path, net, theta)
    assert metrics["records"] == len(labels) == 80
    assert metrics["accuracy"] == pytest.approx(right.mean().item())
    assert metrics["loss"] == loss
    of_a_class = right[labels == 3].mean().item()
    assert metrics["per_class"]["pattern3"] == pytest.approx(of_a_class, abs=1e-4)
    validation_loss, right, _ = loss_and_right(held.validation)
    assert len(right) == 20
    for threads in (1, 3):
        measures = HeldOutMeasures(lots_config(), records, choose(net), threads=threads)
        assert measures.validate(theta) == {"validation_loss": validation_loss}
        assert measures.test(theta) == {
            "test_loss": metrics["loss"],
            "test_accuracy": pytest.approx(metrics["accuracy"]),
        }


@pytest.mark.parametrize("threads", [1, 3])
def test_records_are_measured_in_pieces_of_one_size(threads):
    """600 records are pieces of 256, 256 and 88. The results keep the order."""

    def evaluate_piece(theta, images, labels):
        sizes = np.full(len(labels), len(labels))
        return Measured(images[:, 0] * 1.0, sizes, np.ones(len(labels)))

    piece_sizes = SimpleNamespace(evaluate=evaluate_piece)
    choice = Choice("piece sizes", lambda: piece_sizes, "cpu")
    workers = Workers(choice, lambda gradients: gradients, threads=threads)
    records = np.arange(600)[:, None]
    losses, sizes = measured_in_pieces(workers, np.zeros(1), records, records[:, 0])
    assert losses.tolist() == list(range(600))
    assert sizes.tolist() == [256] * 512 + [88] * 88


def test_validation_records_are_the_same_for_every_seed_and_in_no_test(records):
    first, second = (held_out(lots_config({"seed": seed}), records) for seed in (0, 5))
    np.testing.assert_equal(first._asdict(), second._asdict())
    validation, test = (
        {image.tobytes() for image in images}
        for images, _ in (first.validation, first.test)
    )
    assert len(validation) == 20
    assert validation.isdisjoint(test)
    with pytest.raises(BenchError, match=r"^validation\.tasks is 100, but"):
        held_out(lots_config({"validation": {"tasks": 100}}), records)


def test_model_whose_loss_is_not_finite_is_refused(silos, net, tmp_path):
    theta = np.full(net.dimension, np.nan, np.float32)
    with pytest.raises(BenchError, match=r"the model's loss is not finite: lower"):
        metrics_of(silos, tmp_path, net, theta)
