"""Updates with `contributions`: what they get, what is kept, and that threads,
processes, chunks and restarts change no bit.
"""

from typing import ClassVar, Literal

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.evaluation import personal_test
from dpfedbench.evaluation.personal_test import summarize_clients
from dpfedbench.papers.dp_fedmeta import DpAgr
from dpfedbench.papers.federated_averaging import DpFedAvg
from dpfedbench.training.client_updates.client_update import ClientUpdate, CohortClients
from dpfedbench.training.client_updates.maml import Maml
from dpfedbench.training.processes import Processes
from dpsum.randomness import stream

from . import conftest
from .conftest import DIFFERENCE, RUN, rounds_of, stop_before, train, training_in


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
            client.state["head"] = weights[model.head]
            client.state["rounds"] = client.state.get("rounds", 0) + 1
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


def config_of(method, *overlays, base="dp-fedavg", general=DIFFERENCE):
    run = conftest.make_config({"method": base}, *overlays, general=general)
    update = {
        "client_update": {"kind": method.model_fields["client_update"].default.kind}
    }
    return method.read(run.plain() | {"method": method.name} | update)


FEDREP = config_of(DpFedRep, {"clients": {"held_out_share": 0.2}})


def personal_in(run_dir):
    training = training_in(run_dir)
    return {name: training[name] for name in personal_test.COLUMNS}


def test_user_averaging_has_the_bits_of_model_difference(silos, tmp_path):
    written = rounds_of(config_of(DpAveraging), silos, tmp_path / "written")
    shipped = rounds_of(conftest.make_config(general=DIFFERENCE), silos, tmp_path)
    for index in range(3):
        written.round(index)
        shipped.round(index)
    assert torch.equal(written.theta, shipped.theta)


@pytest.fixture(scope="module")
def fedrep(silos, tmp_path_factory):
    """Train FedRep without a break; return its files and personal test."""
    folder = tmp_path_factory.mktemp("fedrep")
    return train(FEDREP, silos, folder), personal_in(folder)


def test_threads_change_no_bit_of_personal_models(silos, tmp_path, fedrep):
    files = train(FEDREP, silos, tmp_path, threads=3)
    assert (files, personal_in(tmp_path)) == fedrep


@pytest.mark.parametrize("index", [1, 4])
def test_killed_training_of_personal_models_ends_with_the_same_bits(
    silos, tmp_path, monkeypatch, fedrep, index
):
    with monkeypatch.context() as patch:
        stop = stop_before(patch, index)
        with pytest.raises(stop):
            train(FEDREP, silos, tmp_path, checkpoint_seconds=0)
    files = train(FEDREP, silos, tmp_path)
    assert (files, personal_in(tmp_path)) == fedrep


def test_restart_without_states_of_clients_changes_the_result(
    silos, tmp_path, monkeypatch, fedrep
):
    with monkeypatch.context() as patch:
        stop = stop_before(patch, 4)
        with pytest.raises(stop):
            train(FEDREP, silos, tmp_path, checkpoint_seconds=0)
    monkeypatch.setattr(CohortClients, "restore", lambda self, state: 0)
    files = train(FEDREP, silos, tmp_path)
    assert files != fedrep[0]
    assert personal_in(tmp_path) != fedrep[1]


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


def test_personal_test_is_of_examples_that_training_leaves_out(silos, tmp_path):
    rounds = rounds_of(FEDREP, silos, tmp_path)
    held = rounds.held
    whole = rounds_of(config_of(DpFedRep), silos, tmp_path / "whole").held
    for client in range(4):
        rows = held.test_record_indices[client]
        trained = set(held.record_indices[client])
        tested = set(rows)
        assert not trained & tested
        assert trained | tested == set(whole.record_indices[client])
        assert len(tested) == round(0.2 * len(whole.record_indices[client]))
        assert np.array_equal(held.test_images[client], held.dataset.images[rows])
        assert np.array_equal(held.test_labels[client], held.dataset.labels[rows])
    read = []
    update = type(rounds.run.client_update)
    contributions = update.contributions

    def watched(self, model, cohort, index):
        read.extend((client.number, client.records[1]) for client in cohort)
        yield from contributions(self, model, cohort, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "contributions", watched)
        rounds.round(0)
    assert read
    assert all(np.array_equal(labels, held.labels[n]) for n, labels in read)


def test_personal_accuracies_are_of_the_clients_models(silos, tmp_path):
    rounds = rounds_of(FEDREP, silos, tmp_path)
    for index in range(3):
        rounds.round(index)
    before = rounds.clients.state()
    result = rounds.personal_test()
    gradients = rounds.gradients.make()
    accuracies = []
    for client in range(4):
        weights = rounds.theta.clone()
        head = torch.from_numpy(rounds.net.mask("head"))
        state = before["clients"].get(client, {})
        weights[head] = state.get("head", weights[head])
        images = rounds.held.images[client]
        labels = rounds.held.labels[client]
        room = torch.empty((8, len(weights)))
        for _ in range(2):
            total = gradients.summed_record_gradients(
                weights.numpy(), images, labels, room
            )
            mean = torch.from_numpy((total / len(labels)).astype(np.float32))
            weights[head] -= 0.1 * mean[head]
        tested = rounds.held.test_images[client], rounds.held.test_labels[client]
        accuracies.append(100 * gradients.evaluate(weights.numpy(), *tested).accuracy)
    assert result == summarize_clients(np.array(accuracies))
    after = rounds.clients.state()["clients"]
    for client, state in before["clients"].items():
        assert torch.equal(after[client]["head"], state["head"])


def test_worst_tenth_is_the_mean_of_the_lowest():
    """The worst tenth of 21 clients are three: 1, 2 and 3 percent."""
    assert summarize_clients(np.arange(21.0, 0.0, -1)) == {
        "personal_accuracy": 11.0,
        "personal_worst_tenth": 2.0,
        "personal_spread": pytest.approx((440 / 12) ** 0.5),
        "personal_clients": 21,
    }


def test_shipped_updates_test_the_servers_model_on_clients_examples(silos, tmp_path):
    run = conftest.make_config({"clients": {"held_out_share": 0.3}}, general=DIFFERENCE)
    rounds = rounds_of(run, silos, tmp_path)
    rounds.round(0)
    held = rounds.held
    gradients = rounds.gradients.make()
    expected = [
        100 * gradients.evaluate(rounds.theta.numpy(), x, y).accuracy
        for x, y in zip(held.test_images, held.test_labels, strict=True)
    ]
    assert rounds.personal_test() == summarize_clients(np.array(expected))
    assert any("exist only in the simulation" in notice for notice in run.notices)


def test_runs_without_a_personal_test_have_no_columns_of_it(silos, tmp_path):
    train(config_of(DpAveraging), silos, tmp_path)
    assert not set(personal_test.COLUMNS) & set(training_in(tmp_path))
    assert "held_out_share" not in config_of(DpAveraging).identity()["clients"]


@pytest.mark.parametrize(
    ("method", "general"),
    [("dp-agr", RUN), ("adap-dp-fl", conftest.LOTS)],
)
def test_held_out_share_of_clients_without_a_personal_test_is_refused(method, general):
    overlay = {"method": method, "clients": {"held_out_share": 0.2}}
    with pytest.raises(BenchError, match=r"clients.held_out_share is 0.2, but"):
        conftest.make_config(overlay, general=general)


class FewShot(ClientUpdate):
    """Update that sends the query gradient after one step on the support set."""

    kind: Literal["few-shot"] = "few-shot"
    client_data: ClassVar[str] = "tasks"
    sends: ClassVar[str] = "query-gradient"
    keeps_state: ClassVar[bool] = False

    def contributions(self, model, cohort, index):
        for client in cohort:
            weights = model.weights - 0.1 * model.gradient(
                model.weights, client.support
            )
            yield model.gradient(weights, client.query)


class DpFewShot(DpAgr):
    name: ClassVar[str] = "dp-few-shot"
    client_update: FewShot = FewShot()


def test_few_shot_clients_have_support_and_query_sets(federation, tmp_path):
    """The user's update is first-order MAML without batch normalisation."""
    overlay = {
        "model": {"normalisation": "record"},
        "client_update": {"order": 1, "inner_steps": 1, "inner_rate": 0.1},
    }
    shipped = conftest.make_config(overlay)
    values = shipped.plain() | {
        "method": "dp-few-shot",
        "client_update": {"kind": "few-shot"},
    }
    written = rounds_of(DpFewShot.read(values), federation, tmp_path / "written")
    theta = written.theta.numpy()
    rows, expected = (
        next(iter(rounds.clients.contributions(theta, np.arange(4), 0)))[0]
        for rounds in (written, rounds_of(shipped, federation, tmp_path / "shipped"))
    )
    assert torch.allclose(rows, expected, atol=1e-5)


def clients_of(silos, tmp_path, function, *, keeps_state=True):
    """Return clients of an update whose `contributions` is this function."""
    rounds = rounds_of(config_of(DpAveraging), silos, tmp_path)
    update = type(
        "Bad",
        (Averaging,),
        {"contributions": function, "keeps_state": keeps_state},
    )()
    clients = CohortClients(update, rounds.clients._setup)
    return clients, rounds.theta.numpy()


def computed(silos, tmp_path, function, **values):
    clients, theta = clients_of(silos, tmp_path, function, **values)
    return list(clients.contributions(theta, np.arange(3), 0))


def too_few(self, model, cohort, index):
    yield model.weights


def too_many(self, model, cohort, index):
    for _ in range(5):
        yield model.weights


def shared_alone(self, model, cohort, index):
    for _ in cohort:
        yield model.weights[model.head]


def keeps_arrays(self, model, cohort, index):
    for client in cohort:
        client.state["head"] = np.zeros(3)
        yield model.weights


def keeps_undeclared(self, model, cohort, index):
    for client in cohort:
        client.state["head"] = 1.0
        yield model.weights


@pytest.mark.parametrize(
    ("function", "keeps_state", "message"),
    [
        (too_few, True, "yields 1 messages for 3 clients"),
        (too_many, True, "yields more messages for 3 clients"),
        (shared_alone, True, "yield the weights of the whole model"),
        (keeps_arrays, True, "keeps head, a ndarray: keep only tensors, numbers"),
        (keeps_undeclared, False, "has keeps_state = False: set it to True"),
    ],
)
def test_updates_that_break_the_interface_are_refused(
    silos, tmp_path, function, keeps_state, message
):
    with pytest.raises(BenchError, match=message):
        computed(silos, tmp_path, function, keeps_state=keeps_state)


def test_state_is_not_kept_where_the_message_is_not_finite(silos, tmp_path):
    def contributions(self, model, cohort, index):
        for client in cohort:
            client.state["seen"] = index
            if client.number == 1:
                yield model.weights * float("nan")
            else:
                yield model.weights

    clients, theta = clients_of(silos, tmp_path, contributions)
    list(clients.contributions(theta, np.arange(3), 0))
    assert sorted(clients.state()["clients"]) == [0, 2]


def test_view_in_a_state_is_saved_without_the_tensor_behind_it(silos, tmp_path):
    def contributions(self, model, cohort, index):
        for client in cohort:
            weights = model.weights
            client.state["first"] = weights[:2]
            yield weights
            weights.zero_()

    clients, theta = clients_of(silos, tmp_path, contributions)
    list(clients.contributions(theta, np.arange(1), 0))
    saved = clients.state()["clients"][0]["first"]
    assert saved.untyped_storage().size() == 2 * saved.element_size()
    assert saved.tolist() == [0.0, 0.0]


def test_process_restores_the_states_of_its_own_clients(silos, tmp_path):
    clients, _ = clients_of(silos, tmp_path, keeps_undeclared)
    clients._processes = Processes(1, 2)
    states = {client: {"head": float(client)} for client in range(4)}
    clients.restore({"clients": states, "public": {}})
    assert clients._states == {1: {"head": 1.0}, 3: {"head": 3.0}}


def test_clients_with_state_are_refused_under_fixed_size_cohorts():
    overlay = {"participation": {"kind": "fixed-size", "cohort": 2, "rounds": 6}}
    with pytest.raises(BenchError, match="keep state, but"):
        config_of(DpFedRep, overlay)
    config_of(DpAveraging, overlay)


def test_held_out_examples_are_drawn_from_their_own_stream(silos, tmp_path):
    held = rounds_of(FEDREP, silos, tmp_path).held
    whole = rounds_of(
        config_of(DpFedRep), silos, tmp_path / "whole"
    ).held.record_indices[0]
    order = stream(0, "held-out-examples", 0).permutation(len(whole))
    tested = len(held.test_record_indices[0])
    assert held.test_record_indices[0].tolist() == sorted(whole[order[:tested]])


def test_random_numbers_of_clients_follow_from_names(silos, tmp_path):
    """The purpose of their streams is that of no noise, cohort or lot."""
    drawn = {}

    def contributions(self, model, cohort, index):
        for client in cohort:
            generator = model.stream("noise", index, client.number)
            drawn[client.number] = int(generator.integers(2**62))
            yield model.weights

    clients, theta = clients_of(silos, tmp_path, contributions)
    list(clients.contributions(theta, np.arange(3), 5))
    seed = config_of(DpAveraging).stream_seed
    for client in range(3):
        named = stream(seed, "client-update/noise", 5, client)
        assert drawn[client] == int(named.integers(2**62))
    assert len(set(drawn.values())) == 3


def test_contributions_that_nobody_would_call_are_refused():
    with pytest.raises(BenchError, match="Mine defines contributions, but"):

        class Mine(Maml):
            def contributions(self, model, cohort, index):
                yield from ()
