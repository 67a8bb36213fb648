"""Clients that send model differences, and the momentum of the server that sums them (DP-FedAvg)."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dpfedbench.config import RunConfig, merge
from dpfedbench.data.fragments import load_fragments
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.meta_test import meta_test
from dpfedbench.federation import engine
from dpfedbench.federation.composition import Composition, ModelDifference
from dpfedbench.federation.record_clients import RecordClients
from dpfedbench.federation.server import Server
from dpfedbench.models.cnn import Cnn
from dpfedbench.privacy.ledger import read_ledger
from dpfedbench.randomness import stream

from .conftest import PLAIN, RUN

DIFFERENCE = {
    "dataset": "digits",
    "task": {"ways": 10, "shots": 0},
    "clients": {"count": 4, "partition": "fragments", "fragments": 20},
    "model": {"name": "cnn", "pixel_mean": 0.3, "pixel_deviation": 0.5},
    "participation": {"kind": "poisson", "cohort": 2, "rounds": 6},
    "client_update": {"kind": "model-difference", "inner_steps": 2, "inner_rate": 0.1},
    "clipping": {"rule": "constant", "threshold": 0.5},
    "server": {"optimizer": "sgd", "rate": 1.0, "momentum": 0.9},
    "validation": {"every": 3, "tasks": 20, "ensemble": 1},
    "evaluation": {"every": 3},
}


def make_config(*overlays):
    return RunConfig.from_dict(merge(RUN, DIFFERENCE, *overlays))


def clients_of(config, silos, threads=1):
    update = Composition.of(config).update
    assert isinstance(update, ModelDifference)
    return RecordClients(config, update, data_dir=silos[0], clients_dir=silos[1], threads=threads)


def train(config, silos, run_dir, threads=1, checkpoint_seconds=1e9):
    engine.train(
        config, data_dir=silos[0], clients_dir=silos[1], run_dir=run_dir, threads=threads,
        checkpoint_seconds=checkpoint_seconds,
    )  # fmt: skip
    meta_test(config, data_dir=silos[0], model_path=run_dir / "model.safetensors", out_path=run_dir / "metrics.json")
    return {name: (run_dir / name).read_bytes() for name in ("model.safetensors", "ledger.jsonl", "metrics.json")}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_difference_is_that_of_autodiff_steps_on_all_records(silos, optimizer):
    """100 records a client: more than one piece, the last of them not full."""
    rate = {"sgd": 0.1, "adam": 0.001}[optimizer]
    clients = clients_of(make_config({"client_update": {"optimizer": optimizer, "inner_rate": rate}}), silos)
    dataset, partition = load_records(silos[0]), load_fragments(silos[1])
    net = Cnn(image_shape=dataset.image_shape, classes=10, pixel_mean=0.3, pixel_deviation=0.5)
    theta = net.initial(stream(0, "initial-weights"))
    ((found, losses, accuracies),) = clients.stream(theta, np.array([2, 0]), 0)
    for row, client in enumerate((2, 0)):
        own = partition.records[client]
        images = torch.from_numpy(np.asarray(dataset.images[own])).float() / 255
        labels = torch.from_numpy(np.asarray(dataset.labels[own]))
        model = torch.nn.Parameter(torch.from_numpy(theta.copy()))
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
        trained = kind([model], lr=rate)
        for step in range(2):
            trained.zero_grad()
            logits = net.logits(model, images)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            if step == 0:
                assert losses[row] == pytest.approx(loss.item(), rel=1e-5)
                assert accuracies[row] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
            loss.backward()
            trained.step()
        wanted = torch.from_numpy(theta) - model.detach()
        assert wanted.norm() > 1e-3
        if optimizer == "sgd":
            assert torch.allclose(found[row], wanted, rtol=1e-3, atol=1e-6)
        else:
            # Adam's step is a ratio: where a gradient is near zero, rounding decides it.
            assert torch.isclose(found[row], wanted, atol=1e-5).float().mean() > 0.99


def test_momentum_is_that_of_fedavgm():
    """v <- 0.5 v + g, theta <- theta - 2 v: from 1, with g = 1 and then 3, to -1 and then -8."""
    server = Server(np.ones(1, np.float32), optimizer="sgd", rate=2.0, momentum=0.5)
    server.step(torch.tensor([1.0]))
    assert server.theta.tolist() == [-1.0]
    server.step(torch.tensor([3.0]))
    assert server.theta.tolist() == [-8.0]


@pytest.mark.parametrize(("optimizer", "momentum"), [("adam", 0.5), ("sgd", 1.0), ("sgd", -0.1), ("sgd", float("nan"))])
def test_momentum_out_of_place_is_refused(optimizer, momentum):
    with pytest.raises(BenchError, match=r"server\.momentum"):
        Server(np.ones(1, np.float32), optimizer=optimizer, rate=1.0, momentum=momentum)


def test_the_whole_run_is_accounted_for_by_client(silos, tmp_path):
    train(make_config(), silos, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert [event.round for event in ledger] == list(range(6))
    for event in ledger:
        assert (event.name, event.unit, event.observer) == ("model-difference-sum", "client", "everyone")
        assert (event.sensitivity, event.noise_std, event.denominator) == (0.5, 0.5, 2.0)
        assert event.sampler["kind"] == "poisson" and event.sampler["rate"] == 0.5
    head, *rows = (tmp_path / "history.csv").read_text().splitlines()
    columns = head.split(",")
    # Nothing that no noise protects; public validation and test at rounds 3 and 6.
    assert not [name for name in columns if name.startswith("norm_")]
    measured = {name: [row.split(",")[columns.index(name)] != "" for row in rows] for name in columns}
    assert not any(measured["loss"])
    assert measured["test_accuracy"] == measured["validation_loss"] == [False, False, True] * 2


def test_threads_and_restarts_change_no_bit(silos, tmp_path, monkeypatch):
    """Momentum is kept over a restart: the run that was stopped after three rounds ends as the other."""
    whole = train(make_config(), silos, tmp_path / "whole")
    assert train(make_config(), silos, tmp_path / "threads", threads=3) == whole

    class Stop(Exception):
        pass

    step = engine._Training._round

    def until_three(self, index):
        if index == 3:
            raise Stop
        return step(self, index)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(engine._Training, "_round", until_three)
        train(make_config(), silos, tmp_path / "resumed", checkpoint_seconds=0)
    assert train(make_config(), silos, tmp_path / "resumed") == whole
    assert json.loads((tmp_path / "resumed" / "training.json").read_text())["resumed"] == 1
    other = train(make_config({"server": {"momentum": 0.0}}), silos, tmp_path / "without")
    assert other["model.safetensors"] != whole["model.safetensors"]


def test_without_privacy_one_step_of_all_is_a_gradient_step(silos, tmp_path):
    """One local step of rate r by everyone, averaged: FedSGD, a step of r along the gradient over all records."""
    overlay = {
        "participation": {"kind": "one-pass", "cohort": 4, "rounds": 1},
        "client_update": {"inner_steps": 1},
        "server": {"momentum": 0.0},
    }
    train(make_config(PLAIN, {"method": "fedavg"}, overlay), silos, tmp_path)
    dataset, partition = load_records(silos[0]), load_fragments(silos[1])
    net = Cnn(image_shape=dataset.image_shape, classes=10, pixel_mean=0.3, pixel_deviation=0.5)
    theta = torch.from_numpy(net.initial(stream(0, "initial-weights"))).requires_grad_()
    own = partition.records.ravel()
    images = torch.from_numpy(np.asarray(dataset.images[own])).float() / 255
    loss = torch.nn.functional.cross_entropy(net.logits(theta, images), torch.from_numpy(dataset.labels[own]))
    (gradient,) = torch.autograd.grad(loss, theta)
    trained = load_file(tmp_path / "model.safetensors")
    found = net.flatten({name.removeprefix("member1/"): tensor for name, tensor in trained.items()})
    assert np.allclose(found, (theta - 0.1 * gradient).detach().numpy(), rtol=1e-3, atol=1e-6)


def test_data_of_another_number_of_classes_are_refused(silos):
    with pytest.raises(BenchError, match=r"task\.ways is 5, but digits has 10 classes"):
        clients_of(make_config({"task": {"ways": 5}}), silos)
