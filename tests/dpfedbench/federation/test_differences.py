"""Clients that send model differences, and the momentum of the server that sums them
(DP-FedAvg).
"""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpsum.ledger import read_ledger
from dpsum.randomness import stream
from tests.partitions import make_dirichlet

from . import conftest
from .conftest import DIFFERENCE, rounds_of, stop_before, train


def make_config(*overlays):
    return conftest.make_config({"method": "dp-fedavg"}, *overlays, general=DIFFERENCE)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_difference_is_that_of_autodiff_steps_on_all_records(
    silos, tmp_path, optimizer
):
    """100 records a client: more than one piece, the last of them not full."""
    rate = {"sgd": 0.1, "adam": 0.001}[optimizer]
    config = make_config(
        {"client_update": {"optimizer": optimizer, "inner_rate": rate}}
    )
    rounds = rounds_of(config, silos, tmp_path)
    dataset, partition, net = (
        load_records(silos[0]),
        RecordPartition.load(silos[1]),
        rounds.net,
    )
    theta = net.initial(stream(0, "initial-weights"))
    ((found, losses, accuracies),) = rounds.clients.contributions(
        theta, np.array([2, 0]), 0
    )
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
                assert accuracies[row] == pytest.approx(
                    (logits.argmax(1) == labels).float().mean().item()
                )
            loss.backward()
            trained.step()
        wanted = torch.from_numpy(theta) - model.detach()
        assert wanted.norm() > 1e-3
        if optimizer == "sgd":
            assert torch.allclose(found[row], wanted, rtol=1e-3, atol=1e-6)
        else:
            # Adam's step is a ratio: where a gradient is near zero, rounding decides
            # it.
            assert torch.isclose(found[row], wanted, atol=1e-5).float().mean() > 0.99


def test_the_whole_run_is_accounted_for_by_client(silos, tmp_path):
    train(make_config(), silos, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert [event.round for event in ledger] == list(range(6))
    for event in ledger:
        assert (event.name, event.unit, event.observer) == (
            "model-difference-sum",
            "client",
            "everyone",
        )
        assert (event.sensitivity, event.noise_std, event.denominator) == (
            0.5,
            0.5,
            2.0,
        )
        assert event.sampler["kind"] == "poisson" and event.sampler["rate"] == 0.5
    head, *rows = (tmp_path / "history.csv").read_text().splitlines()
    columns = head.split(",")
    # Nothing that no noise protects; public validation and test at rounds 3 and 6.
    assert not [name for name in columns if name.startswith("norm_")]
    measured = {
        name: [row.split(",")[columns.index(name)] != "" for row in rows]
        for name in columns
    }
    assert not any(measured["loss"])
    assert (
        measured["test_accuracy"]
        == measured["validation_loss"]
        == [False, False, True] * 2
    )


def test_fedprox_is_accounted_for_as_the_differences_that_it_sends(silos, tmp_path):
    """The term pulls steps back and is of public weights: the releases and the account
    are the plain run's.
    """
    plain, held = (
        make_config(),
        make_config({"client_update": {"kind": "proximal", "mu": 5.0}}),
    )
    files = [train(run, silos, tmp_path / run.key) for run in (plain, held)]
    assert files[0]["model.safetensors"] != files[1]["model.safetensors"]
    assert files[0]["ledger.jsonl"] == files[1]["ledger.jsonl"]
    found = [
        rounds_of(run, silos, tmp_path / f"again-{run.key}") for run in (plain, held)
    ]
    cohort, theta = np.arange(4), found[0].net.initial(stream(0, "initial-weights"))
    norms = [
        next(iter(one.clients.contributions(theta, cohort, 0)))[0].norm(dim=1)
        for one in found
    ]
    assert (norms[1] < norms[0]).all()
    train(
        make_config({"method": "fedavg", "client_update": {"kind": "proximal"}}),
        silos,
        tmp_path / "public",
    )


def test_clients_of_unequal_size_count_alike_in_the_mean(silos, tmp_path):
    """One local step of everyone, averaged: a step along the mean over clients of each
    one's mean gradient.
    """
    dataset = load_records(silos[0])
    made = make_dirichlet(dataset, clients=4, concentration=0.3, least=5, seed=0)
    made.save(tmp_path / "clients")
    overlay = {
        "clients": {"partition": "dirichlet", "concentration": 0.3, "least": 5},
        "participation": {"kind": "one-pass", "cohort": 4, "rounds": 1},
        "client_update": {"inner_steps": 1},
        "server": {"optimizer": {"momentum": 0.0}},
    }
    config = make_config({"method": "fedavg"}, overlay)
    train(config, (silos[0], tmp_path / "clients"), tmp_path / "run")
    net, steps = config.net(dataset.image_shape, 10), []
    theta = torch.from_numpy(net.initial(stream(0, "initial-weights"))).requires_grad_()
    for own, size in zip(made.records, made.summary["records_per_client"], strict=True):
        images = torch.from_numpy(np.asarray(dataset.images[own[:size]])).float() / 255
        loss = torch.nn.functional.cross_entropy(
            net.logits(theta, images), torch.from_numpy(dataset.labels[own[:size]])
        )
        steps.append(torch.autograd.grad(loss, theta)[0])
    trained = load_file(tmp_path / "run" / "model.safetensors")
    found = net.flatten(
        {name.removeprefix("member1/"): tensor for name, tensor in trained.items()}
    )
    assert np.allclose(
        found, (theta - 0.1 * sum(steps) / 4).detach().numpy(), rtol=1e-3, atol=1e-6
    )


def test_threads_and_restarts_change_no_bit(silos, tmp_path, monkeypatch):
    """Momentum is kept over a restart: the run that was stopped after three rounds ends
    as the other.
    """
    whole = train(make_config(), silos, tmp_path / "whole")
    assert train(make_config(), silos, tmp_path / "threads", threads=3) == whole

    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 3)):
        train(make_config(), silos, tmp_path / "resumed", checkpoint_seconds=0)
    assert train(make_config(), silos, tmp_path / "resumed") == whole
    assert (
        json.loads((tmp_path / "resumed" / "training.json").read_text())["resumed"] == 1
    )
    other = train(
        make_config({"server": {"optimizer": {"momentum": 0.0}}}),
        silos,
        tmp_path / "without",
    )
    assert other["model.safetensors"] != whole["model.safetensors"]


def test_without_privacy_one_step_of_all_is_a_gradient_step(silos, tmp_path):
    """One local step of rate r by everyone, averaged: FedSGD, a step of r along the
    gradient over all records.
    """
    overlay = {
        "participation": {"kind": "one-pass", "cohort": 4, "rounds": 1},
        "client_update": {"inner_steps": 1},
        "server": {"optimizer": {"momentum": 0.0}},
    }
    config = make_config({"method": "fedavg"}, overlay)
    train(config, silos, tmp_path)
    dataset, partition = load_records(silos[0]), RecordPartition.load(silos[1])
    net = config.net(dataset.image_shape, 10)
    theta = torch.from_numpy(net.initial(stream(0, "initial-weights"))).requires_grad_()
    own = partition.records.ravel()
    images = torch.from_numpy(np.asarray(dataset.images[own])).float() / 255
    loss = torch.nn.functional.cross_entropy(
        net.logits(theta, images), torch.from_numpy(dataset.labels[own])
    )
    (gradient,) = torch.autograd.grad(loss, theta)
    trained = load_file(tmp_path / "model.safetensors")
    found = net.flatten(
        {name.removeprefix("member1/"): tensor for name, tensor in trained.items()}
    )
    assert np.allclose(
        found, (theta - 0.1 * gradient).detach().numpy(), rtol=1e-3, atol=1e-6
    )


def test_data_of_another_number_of_classes_are_refused(silos, tmp_path):
    with pytest.raises(BenchError, match=r"task\.ways is 5, but digits has 10 classes"):
        rounds_of(make_config({"task": {"ways": 5}}), silos, tmp_path)
