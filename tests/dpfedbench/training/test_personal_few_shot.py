"""Few-shot clients are tested on examples of their own that training leaves out."""

from typing import ClassVar, Literal

import numpy as np
import pytest
import torch

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import Partition
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.personal_test import COLUMNS, summarize_clients
from dpfedbench.models.meta_gradient import Adaptation
from dpfedbench.papers.dp_fedmeta import DpAgr
from dpfedbench.training.client_updates.client_update import ClientUpdate
from tests.partitions import make_partition

from .conftest import make_config, rounds_of, train, training_in

TESTED = {
    "clients": {"count": 4, "partition": "disjoint", "held_out_share": 0.25},
    "participation": {"cohort": 2, "rounds": 2},
    "validation": {"every": 0},
}


@pytest.fixture(scope="module")
def apart(federation, tmp_path_factory):
    """Make four clients that share no image: (data folder, clients folder)."""
    data, _ = federation
    folder = tmp_path_factory.mktemp("apart") / "clients"
    clients = make_partition(
        load_dataset(data),
        clients=4,
        ways=3,
        examples_per_class=4,
        kind="disjoint",
        seed=0,
    )
    clients.save(folder)
    return data, folder


def test_left_out_examples_are_behind_those_of_training(apart, tmp_path):
    rounds = rounds_of(make_config(TESTED), apart, tmp_path)
    ids = np.array([2, 0])
    batch = rounds.held.gather_left_out(ids, 1)
    trained = rounds.held.gather(ids)
    assert np.array_equal(batch.support_x, trained.support_x)
    assert batch.query_y.tolist() == [[0, 1, 2]] * 2
    partition = Partition.load(apart[1])
    dataset = load_dataset(apart[0])
    for row, client in enumerate(ids):
        for label in range(3):
            of_class = partition.classes[client, label]
            image = dataset.images[of_class, partition.examples[client, label, 3]]
            expected = image.astype(np.float32) / np.float32(255)
            assert np.array_equal(batch.query_x[row, label], expected)


def test_clients_adapt_as_in_the_meta_test(apart, tmp_path):
    run = make_config(TESTED)
    rounds = rounds_of(run, apart, tmp_path)
    rounds.round(0)
    adaptation = Adaptation(rounds.gradients.make(), adapted=None)
    accuracies = []
    for client in range(4):
        batch = rounds.held.gather_left_out(np.array([client]), 1)
        logits = adaptation.logits(
            rounds.theta.numpy(),
            batch.support_x,
            batch.support_y,
            batch.query_x,
            steps=run.evaluation.steps,
            rate=run.evaluation.rate,
        )
        right = np.asarray(logits)[0].argmax(axis=1) == batch.query_y[0]
        accuracies.append(100 * right.mean())
    assert rounds.personal_test() == summarize_clients(np.array(accuracies))


def test_training_has_the_columns_with_any_number_of_threads(apart, tmp_path):
    run = make_config(TESTED)
    train(run, apart, tmp_path / "one")
    train(run, apart, tmp_path / "three", threads=3)
    first = {name: training_in(tmp_path / "one")[name] for name in COLUMNS}
    second = {name: training_in(tmp_path / "three")[name] for name in COLUMNS}
    assert first == second
    assert first["personal_clients"] == 4


class StillUpdate(ClientUpdate):
    """Update that sends zeros. Each client's personal model always answers one class."""

    kind: Literal["still"] = "still"
    client_data: ClassVar[str] = "tasks"
    sends: ClassVar[str] = "query-gradient"
    keeps_state: ClassVar[bool] = False

    def contributions(self, model, cohort, index):
        for _ in cohort:
            yield 0 * model.weights

    def personal_model(self, model, client):
        """Answer with the class that is the client's number, or with the first."""
        weights = 0 * model.weights
        bias = model.mask("head.bias")
        weights[bias] = torch.eye(4, 3)[client.number]
        return weights


class DpStill(DpAgr):
    name: ClassVar[str] = "dp-still"
    client_update: StillUpdate = StillUpdate()


def test_personal_model_of_an_update_replaces_adaptation(apart, tmp_path):
    """Clients 0 to 2 are right in one class of three; client 3 answers the first class."""
    values = make_config(TESTED).plain()
    run = DpStill.read(
        values | {"method": "dp-still", "client_update": {"kind": "still"}}
    )
    rounds = rounds_of(run, apart, tmp_path)
    expected = summarize_clients(np.full(4, 100 / 3))
    assert rounds.personal_test() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (
            {"partition": "shared"},
            "may be in the training data of another: take disjoint",
        ),
        ({"held_out_share": 0.5}, "of 4 examples of a class"),
    ],
)
def test_examples_that_cannot_be_left_out_are_refused(clients, message):
    with pytest.raises(BenchError, match=message):
        make_config(TESTED, {"clients": clients})
