"""The test of a model that is used as it is, by hand, and what it refuses."""

import json

import numpy as np
import pytest
import torch

from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation import evaluate
from dpfedbench.evaluation.held_out import HeldOutMeasures, held_out, measured_in_pieces
from dpfedbench.models.choose import choose
from dpfedbench.models.gradients import Choice, Measured, Workers
from dpfedbench.models.members import save_members
from tests.dpfedbench.federation.conftest import LOTS, make_config


def drawn(net):
    rng = np.random.default_rng(0)
    return (net.initial(rng) + 0.05 * rng.standard_normal(net.dimension)).astype(
        np.float32
    )


def test_it_is_the_share_of_right_answers_on_what_validation_left(silos, tmp_path):
    config, dataset = make_config(general=LOTS), load_records(silos[0])
    net = config.net(dataset.image_shape, 10)
    theta = drawn(net)
    save_members(tmp_path / "model.safetensors", net, [theta])
    evaluate(
        config,
        data_dir=silos[0],
        model_path=tmp_path / "model.safetensors",
        out_path=tmp_path / "metrics.json",
    )
    found = json.loads((tmp_path / "metrics.json").read_text())
    images, labels = held_out(config, dataset).test
    logits = net.logits(torch.from_numpy(theta), torch.from_numpy(images))
    y = torch.from_numpy(labels)
    right = (logits.argmax(dim=1) == y).double()
    assert found["records"] == len(y) == 80 and found["accuracy"] == pytest.approx(
        100 * right.mean().item()
    )
    assert found["loss"] == pytest.approx(
        torch.nn.functional.cross_entropy(logits, y).item(), rel=1e-5
    )
    assert found["per_class"]["pattern3"] == pytest.approx(
        100 * right[y == 3].mean().item(), abs=1e-4
    )
    # What is measured while training is the same number, whatever the threads.
    for threads in (1, 3):
        measures = HeldOutMeasures(config, dataset, choose(net), threads=threads)
        assert measures.test(theta) == {
            "test_loss": found["loss"],
            "test_accuracy": pytest.approx(found["accuracy"]),
        }


def test_validation_is_the_loss_on_the_records_declared_public(silos):
    config, dataset = make_config(general=LOTS), load_records(silos[0])
    net = config.net(dataset.image_shape, 10)
    theta = drawn(net)
    images, labels = held_out(config, dataset).validation
    wanted = torch.nn.functional.cross_entropy(
        net.logits(torch.from_numpy(theta), torch.from_numpy(images)),
        torch.from_numpy(labels),
    )
    found = HeldOutMeasures(config, dataset, choose(net), threads=1).validate(theta)
    assert len(labels) == 20 and found == {
        "validation_loss": pytest.approx(wanted.item(), rel=1e-5)
    }


def test_records_are_taken_in_pieces_of_one_size():
    """600 records: 256, 256 and 88, and the results in their order, whatever the
    threads.
    """
    sizes = []

    class Told:
        def evaluate(self, theta, images, labels):
            sizes.append(len(labels))
            return Measured(images[:, 0] * 1.0, labels * 1.0, np.ones(len(labels)))

    for threads in (1, 3):
        workers = Workers(
            Choice("told", Told, "cpu"), lambda gradients: gradients, threads=threads
        )
        losses, right = measured_in_pieces(
            workers, np.zeros(1), np.arange(600)[:, None], np.arange(600) % 2
        )
        assert losses.tolist() == list(range(600)) and right.sum() == 300
    assert sizes[:3] == [256, 256, 88] and sorted(sizes) == [88, 88, *[256] * 4]


def test_the_validation_split_is_the_same_for_every_seed_and_in_no_test(silos):
    dataset = load_records(silos[0])
    one, other = (
        held_out(make_config({"seed": seed}, general=LOTS), dataset) for seed in (0, 5)
    )
    assert np.array_equal(one.validation[0], other.validation[0]) and np.array_equal(
        one.test[0], other.test[0]
    )
    pixels = [
        {image.tobytes() for image in images}
        for images, _ in (one.validation, one.test)
    ]
    assert len(pixels[0]) == 20 and not pixels[0] & pixels[1]


def test_what_cannot_be_tested_is_refused(silos, tmp_path):
    dataset = load_records(silos[0])
    with pytest.raises(
        BenchError,
        match=(
            r"^validation\.tasks is 100, but the test part of .* has 100 records:"
            r" lower it"
        ),
    ):
        held_out(make_config({"validation": {"tasks": 100}}, general=LOTS), dataset)
    config = make_config(general=LOTS)
    net = config.net(dataset.image_shape, 10)
    save_members(
        tmp_path / "model.safetensors",
        net,
        [np.full(net.dimension, np.nan, np.float32)],
    )
    with pytest.raises(
        BenchError,
        match=r"the model's loss is not finite: lower a learning rate, or the noise$",
    ):
        evaluate(
            config,
            data_dir=silos[0],
            model_path=tmp_path / "model.safetensors",
            out_path=tmp_path / "metrics.json",
        )
