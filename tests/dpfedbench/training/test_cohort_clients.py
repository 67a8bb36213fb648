"""Clients of a cohort: model differences, updates of a user, and personal models."""

import math
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import Partition
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.personal_test import summarize_clients
from dpfedbench.models.meta_gradient import Adaptation
from dpfedbench.papers.dp_fedmeta import DpAgr
from dpfedbench.papers.federated_averaging import DpFedAvg
from dpfedbench.training.client_updates.client_update import ClientUpdate
from dpfedbench.training.client_updates.cohort_clients import CohortClients
from dpsum.randomness import stream
from tests.partitions import make_dirichlet

from .conftest import (
    client_examples,
    difference_config,
    make_config,
    mean_gradient,
    mean_loss,
    rounds_of,
    scaled,
    take_rounds,
    watch,
)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.1), ("adam", 0.001)])
def test_model_difference_is_that_of_autodiff_steps(silos, tmp_path, optimizer, rate):
    """100 records a client are several chunks, the last of which is not full."""
    update = {"kind": "model-difference", "optimizer": optimizer, "inner_rate": rate}
    run = difference_config({"method": "fedavg", "client_update": update})
    rounds = rounds_of(run, silos, tmp_path)
    net = rounds.net
    theta = rounds.theta.clone()
    cohort = np.array([2, 0])
    ((differences, losses),) = rounds.clients.contributions(theta.numpy(), cohort, 0)
    held = client_examples(silos)
    for row, client in enumerate(cohort):
        model = torch.nn.Parameter(theta.clone())
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
        steps = kind([model], lr=rate)
        loss = mean_loss(theta, *held[client], net)
        assert losses[row] == pytest.approx(loss.item(), rel=1e-5)
        for _ in range(2):
            model.grad = mean_gradient(net, model.detach(), *held[client])
            steps.step()
        expected = theta - model.detach()
        assert expected.norm() > 1e-3
        if optimizer == "sgd":
            assert torch.allclose(differences[row], expected, rtol=1e-3, atol=1e-6)
        else:
            # Adam's step is a ratio: near zero, rounding decides it.
            close = torch.isclose(differences[row], expected, atol=1e-5)
            assert close.float().mean() > 0.99


def test_fedavg_weighs_clients_of_any_size_equally(silos, tmp_path):
    """One local step of all clients (FedSGD): the server steps along the mean over
    clients of each client's mean gradient.
    """
    sizes = {"concentration": 0.3, "least": 5}
    folders = silos[0], tmp_path / "clients"
    make_dirichlet(load_records(silos[0]), clients=4, seed=0, **sizes).save(folders[1])
    config = difference_config(
        {
            "method": "fedavg",
            "clients": {"partition": "dirichlet"} | sizes,
            "participation": {"kind": "one-pass", "cohort": 4, "rounds": 1},
            "client_update": {"inner_steps": 1},
            "server": {"optimizer": {"momentum": 0.0}},
        }
    )
    rounds = rounds_of(config, folders, tmp_path / "run")
    theta = rounds.theta.clone()
    gradients = [
        mean_gradient(rounds.net, theta, *held) for held in client_examples(folders)
    ]
    rounds.round(0)
    expected = theta - 0.1 * sum(gradients) / 4
    assert torch.allclose(rounds.theta, expected, rtol=1e-3, atol=1e-6)


# Updates of a user
class Averaging(ClientUpdate):
    """`ModelDifference`, written as a user's update."""

    kind: Literal["averaging"] = "averaging"
    client_data: ClassVar[str] = "records"
    sends: ClassVar[str] = "model-difference-sum"
    keeps_state: ClassVar[bool] = False

    def contributions(self, model, cohort, index):
        for client in cohort:
            weights = model.weights
            for _ in range(2):
                gradient = model.gradient(weights, client.records)
                weights.add_(gradient, alpha=-0.1)
            yield model.weights - weights


class FedRepUpdate(ClientUpdate):
    """Update with steps of a personal head, then of the body."""

    kind: Literal["fed-rep"] = "fed-rep"
    client_data: ClassVar[str] = "records"
    sends: ClassVar[str] = "body-difference-sum"
    keeps_state: ClassVar[bool] = True

    def contributions(self, model, cohort, index):
        for client in cohort:
            weights = self.personal_model(model, client)
            rounds = client.state.get("rounds", 0) + 1
            client.state.update(head=weights[model.head], rounds=rounds)
            gradient = model.gradient(weights, client.records)
            weights[model.shared] -= 0.1 * gradient[model.shared]
            yield model.weights - weights

    def personal_model(self, model, client):
        weights = model.weights
        if "head" in client.state:
            weights[model.head] = client.state["head"]
        for _ in range(2):
            gradient = model.gradient(weights, client.records)
            weights[model.head] -= 0.1 * gradient[model.head]
        return weights


class DpAveraging(DpFedAvg):
    name: ClassVar[str] = "dp-averaging"
    client_update: Averaging = Averaging()


class DpFedRep(DpFedAvg):
    name: ClassVar[str] = "dp-fed-rep-test"
    shared: ClassVar[str] = "body"
    client_update: FedRepUpdate = FedRepUpdate()


def config_of(method, *overlays):
    run = difference_config({"method": "dp-fedavg"}, *overlays)
    update = {"kind": method.model_fields["client_update"].default.kind}
    return method.read(run.plain() | {"method": method.name, "client_update": update})


FEDREP = config_of(DpFedRep, {"clients": {"held_out_share": 0.2}})


def test_user_averaging_has_the_bits_of_model_difference(silos, tmp_path):
    written, shipped = (
        take_rounds(rounds_of(run, silos, tmp_path / run.method), 3)
        for run in (config_of(DpAveraging), difference_config())
    )
    assert torch.equal(written.theta, shipped.theta)


def test_clients_keep_their_state_and_the_server_keeps_the_initial_head(
    silos, tmp_path
):
    rounds = rounds_of(FEDREP, silos, tmp_path)
    initial = rounds.theta.clone()
    rounds_taken = np.zeros(4, int)
    for index in range(4):
        rounds_taken[rounds.plan.sample_cohort(index)] += 1
        rounds.round(index)
    head = torch.from_numpy(rounds.net.mask("head"))
    assert torch.equal(rounds.theta[head], initial[head])
    states = rounds.clients.state()["clients"]
    counts = [states.get(n, {}).get("rounds", 0) for n in range(4)]
    assert counts == rounds_taken.tolist()
    assert all(len(state["head"]) == int(head.sum()) for state in states.values())


def test_personal_test_is_of_examples_that_training_leaves_out(
    silos, tmp_path, monkeypatch
):
    rounds = rounds_of(FEDREP, silos, tmp_path)
    held = rounds.held
    whole = rounds_of(config_of(DpFedRep), silos, tmp_path / "whole").held
    for client in range(4):
        records = whole.record_indices[client]
        order = stream(0, "held-out-examples", client).permutation(len(records))
        tested = sorted(records[order[: round(0.2 * len(order))]])
        assert held.test_record_indices[client].tolist() == tested
        trained = set(held.record_indices[client])
        assert trained == set(records) - set(tested)
        assert np.array_equal(held.test_images[client], held.dataset.images[tested])
        assert np.array_equal(held.test_labels[client], held.dataset.labels[tested])
    read = watch(
        monkeypatch,
        FedRepUpdate,
        "personal_model",
        lambda weights, update, model, client: (client.number, client.records[1]),
    )
    rounds.round(0)
    assert read
    assert all(np.array_equal(labels, held.labels[n]) for n, labels in read)


def test_personal_accuracies_are_of_the_clients_models(silos, tmp_path):
    rounds = take_rounds(rounds_of(FEDREP, silos, tmp_path), 3)
    before = rounds.clients.state()["clients"]
    result = rounds.personal_test()
    net = rounds.net
    held = rounds.held
    head = torch.from_numpy(net.mask("head"))
    accuracies = []
    for client in range(4):
        weights = rounds.theta.clone()
        weights[head] = before.get(client, {}).get("head", weights[head])
        trained = scaled(held.images[client], held.labels[client])
        for _ in range(2):
            weights[head] -= 0.1 * mean_gradient(net, weights, *trained)[head]
        images, labels = scaled(held.test_images[client], held.test_labels[client])
        right = net.logits(weights, images).argmax(dim=1) == labels
        accuracies.append(100 * float(right.double().mean()))
    assert result == summarize_clients(np.array(accuracies))
    after = rounds.clients.state()["clients"]
    for client, state in before.items():
        assert torch.equal(after[client]["head"], state["head"])


def test_personal_accuracies_are_summarized_by_mean_worst_tenth_and_spread():
    """The worst tenth of 21 clients are three: 1, 2 and 3 percent."""
    assert summarize_clients(np.arange(21.0, 0.0, -1)) == {
        "personal_accuracy": 11.0,
        "personal_worst_tenth": 2.0,
        "personal_spread": pytest.approx((440 / 12) ** 0.5),
        "personal_clients": 21,
    }


class FewShot(ClientUpdate):
    """Update that sends the query gradient after one step on the support set."""

    kind: Literal["few-shot"] = "few-shot"
    client_data: ClassVar[str] = "tasks"
    sends: ClassVar[str] = "query-gradient"
    keeps_state: ClassVar[bool] = False

    def contributions(self, model, cohort, index):
        for client in cohort:
            gradient = model.gradient(model.weights, client.support)
            yield model.gradient(model.weights - 0.1 * gradient, client.query)

    def personal_model(self, model, client):
        """Answer with the class that is the client's number, or with the first."""
        weights = 0 * model.weights
        bias = model.mask("head.bias")
        weights[bias] = torch.eye(4, 3)[client.number]
        return weights


class DpFewShot(DpAgr):
    name: ClassVar[str] = "dp-few-shot"
    client_update: FewShot = FewShot()


def few_shot(run):
    """Return a run of the user's update with the other settings of this run."""
    update = {"client_update": {"kind": "few-shot"}}
    return DpFewShot.read(run.plain() | {"method": "dp-few-shot"} | update)


def test_few_shot_clients_have_support_and_query_sets(federation, tmp_path):
    """The user's update is first-order MAML without batch normalisation."""
    first_order = {"client_update": {"order": 1}}
    shipped = make_config(first_order, {"model": {"normalisation": "record"}})
    rows = []
    for run in (few_shot(shipped), shipped):
        rounds = rounds_of(run, federation, tmp_path / run.method)
        theta = rounds.theta.numpy()
        chunk, *_ = rounds.clients.contributions(theta, np.arange(4), 0)
        rows.append(chunk[0])
    assert torch.allclose(*rows, atol=1e-5)


def clients_of(silos, tmp_path, function):
    """Return clients of an update whose `contributions` is this function."""
    rounds = rounds_of(config_of(DpAveraging), silos, tmp_path)
    members = {"contributions": function, "keeps_state": True}
    update = type("Watched", (Averaging,), members)()
    clients = CohortClients(update, rounds.clients._setup)
    return clients, rounds.theta.numpy()


def test_state_is_not_kept_where_the_message_is_not_finite(silos, tmp_path):
    def contributions(self, model, cohort, index):
        for client in cohort:
            client.state["seen"] = index
            yield model.weights * (math.nan if client.number == 1 else 1.0)

    clients, theta = clients_of(silos, tmp_path, contributions)
    list(clients.contributions(theta, np.arange(3), 0))
    assert sorted(clients.state()["clients"]) == [0, 2]


def test_random_numbers_of_clients_follow_from_names(silos, tmp_path):
    """The purpose of their streams is that of no noise, cohort or lot."""
    drawn = []

    def contributions(self, model, cohort, index):
        for client in cohort:
            generator = model.stream("noise", index, client.number)
            drawn.append(int(generator.integers(2**62)))
            yield model.weights

    clients, theta = clients_of(silos, tmp_path, contributions)
    list(clients.contributions(theta, np.arange(3), 5))
    seed = config_of(DpAveraging).stream_seed
    named = [stream(seed, "client-update/noise", 5, client) for client in range(3)]
    assert drawn == [int(generator.integers(2**62)) for generator in named]
    assert len(set(drawn)) == 3


# Few-shot clients are tested on examples of their own that training leaves out
TESTED = {
    "clients": {"count": 4, "partition": "disjoint", "held_out_share": 0.25},
    "participation": {"cohort": 2, "rounds": 2},
    "validation": {"every": 0},
}


def test_left_out_examples_are_behind_those_of_training(apart, tmp_path):
    rounds = rounds_of(make_config(TESTED), apart, tmp_path)
    ids = np.array([2, 0])
    batch = rounds.held.gather_left_out(ids, 1)
    assert np.array_equal(batch.support_x, rounds.held.gather(ids).support_x)
    assert batch.query_y.tolist() == [[0, 1, 2]] * 2
    partition = Partition.load(apart[1])
    left_out = partition.classes[ids], partition.examples[ids, :, 3]
    images = load_dataset(apart[0]).images[left_out]
    assert np.array_equal(batch.query_x, images.astype(np.float32) / np.float32(255))


def test_clients_adapt_as_in_the_meta_test(apart, tmp_path):
    rounds = take_rounds(rounds_of(make_config(TESTED), apart, tmp_path), 1)
    adaptation = Adaptation(rounds.gradients.make(), adapted=None)
    accuracies = []
    for client in range(4):
        batch = rounds.held.gather_left_out(np.array([client]), 1)
        tasks = batch.support_x, batch.support_y, batch.query_x
        logits = adaptation.logits(rounds.theta.numpy(), *tasks, steps=2, rate=0.1)
        right = np.asarray(logits)[0].argmax(axis=1) == batch.query_y[0]
        accuracies.append(100 * right.mean())
    assert rounds.personal_test() == summarize_clients(np.array(accuracies))


def test_personal_model_of_an_update_replaces_adaptation(apart, tmp_path):
    """Clients 0 to 2 are right in one class of three; client 3 answers the first class."""
    rounds = rounds_of(few_shot(make_config(TESTED)), apart, tmp_path)
    expected = summarize_clients(np.full(4, 100 / 3))
    assert rounds.personal_test() == pytest.approx(expected)


def test_examples_that_another_client_may_train_on_are_not_left_out():
    with pytest.raises(BenchError, match="may be in the training data of another"):
        make_config(TESTED, {"clients": {"partition": "shared"}})
