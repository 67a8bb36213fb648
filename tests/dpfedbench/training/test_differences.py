"""Clients that send model differences, and the server that sums them (DP-FedAvg)."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional

from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpsum.randomness import stream
from tests.partitions import make_dirichlet

from .conftest import difference_config, history_in, ledger_in, rounds_of, train


def examples(dataset, records):
    images = torch.from_numpy(np.asarray(dataset.images[records])).float() / 255
    return images, torch.from_numpy(np.asarray(dataset.labels[records]))


def trained_weights(net, run_dir):
    tensors = load_file(run_dir / "model.safetensors")
    return net.flatten(
        {name.removeprefix("member1/"): tensor for name, tensor in tensors.items()}
    )


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.1), ("adam", 0.001)])
def test_model_difference_is_that_of_autodiff_steps(silos, tmp_path, optimizer, rate):
    """100 records a client are several chunks, the last of which is not full."""
    update = {
        "kind": "model-difference",
        "optimizer": optimizer,
        "inner_rate": rate,
    }
    run = difference_config({"method": "fedavg", "client_update": update})
    rounds = rounds_of(run, silos, tmp_path)
    dataset = load_records(silos[0])
    partition = RecordPartition.load(silos[1])
    net = rounds.net
    theta = net.initial(stream(0, "initial-weights"))
    cohort = np.array([2, 0])
    chunk = rounds.clients.contributions(theta, cohort, 0)
    ((differences, losses, accuracies),) = chunk
    for row, client in enumerate(cohort):
        images, labels = examples(dataset, partition.records[client])
        model = torch.nn.Parameter(torch.from_numpy(theta.copy()))
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
        steps = kind([model], lr=rate)
        for step in range(2):
            steps.zero_grad()
            logits = net.logits(model, images)
            loss = functional.cross_entropy(logits, labels)
            if step == 0:
                accuracy = (logits.argmax(1) == labels).float().mean().item()
                assert losses[row] == pytest.approx(loss.item(), rel=1e-5)
                assert accuracies[row] == pytest.approx(accuracy)
            loss.backward()
            steps.step()
        expected = torch.from_numpy(theta) - model.detach()
        assert expected.norm() > 1e-3
        if optimizer == "sgd":
            assert torch.allclose(differences[row], expected, rtol=1e-3, atol=1e-6)
        else:
            # Adam's step is a ratio: near zero, rounding decides it.
            close = torch.isclose(differences[row], expected, atol=1e-5)
            assert close.float().mean() > 0.99


def test_dp_fedavg_writes_its_releases_by_client(silos, tmp_path):
    train(difference_config(), silos, tmp_path)
    ledger = ledger_in(tmp_path)
    assert [line.round for line in ledger] == list(range(6))
    for line in ledger:
        assert line.name == "model-difference-sum"
        assert line.unit == "client"
        assert line.observer == "everyone"
        assert line.sensitivity == 0.5
        assert line.noise_std == 0.5
        assert line.denominator == 2.0
        assert line.sampler["kind"] == "poisson"
        assert line.sampler["rate"] == 0.5
    history = history_in(tmp_path)
    measured = [False, False, True] * 2  # public validation and test
    assert history["test_accuracy"].notna().tolist() == measured
    assert history["validation_loss"].notna().tolist() == measured


def test_fedprox_sends_shorter_differences_under_the_same_ledger(silos, tmp_path):
    """The proximal term pulls the steps back. It depends on public weights alone."""
    proximal = {"client_update": {"kind": "proximal", "mu": 5.0}}
    files = []
    norms = []
    for config in (difference_config(), difference_config(proximal)):
        files.append(train(config, silos, tmp_path / config.key))
        rounds = rounds_of(config, silos, tmp_path / f"again-{config.key}")
        theta = rounds.net.initial(stream(0, "initial-weights"))
        ((differences, _, _),) = rounds.clients.contributions(theta, np.arange(4), 0)
        norms.append(differences.norm(dim=1))
    fedavg, fedprox = files
    assert fedavg["model.safetensors"] != fedprox["model.safetensors"]
    assert fedavg["ledger.jsonl"] == fedprox["ledger.jsonl"]
    assert (norms[1] < norms[0]).all()


@pytest.mark.parametrize("partition", ["fragments", "dirichlet"])
def test_fedavg_weighs_clients_of_any_size_equally(silos, tmp_path, partition):
    """One local step of all clients (FedSGD): the server steps along the mean over
    clients of each client's mean gradient.
    """
    dataset = load_records(silos[0])
    data, clients = silos
    overlay = {
        "method": "fedavg",
        "participation": {"kind": "one-pass", "cohort": 4, "rounds": 1},
        "client_update": {"inner_steps": 1},
        "server": {"optimizer": {"momentum": 0.0}},
    }
    if partition == "dirichlet":
        clients = tmp_path / "clients"
        sizes = {"concentration": 0.3, "least": 5}
        make_dirichlet(dataset, clients=4, seed=0, **sizes).save(clients)
        overlay["clients"] = {"partition": "dirichlet"} | sizes
    config = difference_config(overlay)
    train(config, (data, clients), tmp_path / "run")
    net = config.net(dataset.image_shape, 10)
    theta = torch.from_numpy(net.initial(stream(0, "initial-weights"))).requires_grad_()
    gradients = []
    for records in RecordPartition.load(clients).records:
        images, labels = examples(dataset, records[records >= 0])
        loss = functional.cross_entropy(net.logits(theta, images), labels)
        gradients.append(torch.autograd.grad(loss, theta)[0])
    expected = (theta - 0.1 * sum(gradients) / 4).detach().numpy()
    weights = trained_weights(net, tmp_path / "run")
    assert np.allclose(weights, expected, rtol=1e-3, atol=1e-6)


def test_data_with_another_number_of_classes_are_refused(silos, tmp_path):
    with pytest.raises(BenchError, match=r"task\.ways is 5, but digits has 10 classes"):
        rounds_of(difference_config({"task": {"ways": 5}}), silos, tmp_path)
