"""Personalised methods: client updates against closed forms and against steps by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.papers import METHODS
from dpfedbench.training.client_updates.local_model import LocalClient, LocalModel
from dpfedbench.training.client_updates.model_difference import ModelDifference
from further.ditto import Ditto
from further.fedrep import DpFedRep, HeadThenBody
from further.fine_tuning import FineTuned
from further.local_training import NoMessage
from further.per_fedavg import PerFedAvg
from tests.dpfedbench.training.conftest import (
    accounted,
    difference_config,
    ledger_in,
    rounds_of,
    take_rounds,
    train,
)

START = np.array([1.0, -2.0, 0.5], np.float32)
CURVATURE = np.array([0.5, 1.0, 2.0])
RATE = 0.2
# Record i of the client has the loss 1/2 sum_j a_j (w_j - b_ij)^2.
OPTIMA = np.random.default_rng(0).standard_normal((7, 3))
CENTRE = OPTIMA.mean(axis=0)


class Quadratics:
    """Gradients of the records' losses; `optima` are the inputs."""

    def __init__(self):
        self.batches = []

    def summed_record_gradients(self, theta, optima, labels, room):
        self.batches.append(labels.tolist())
        return (CURVATURE * (theta - optima)).sum(axis=0)


def model_at(theta=START, shared=(True, True, True)):
    """Return a model of three weights, whose head is the last one, and its gradients."""
    gradients = Quadratics()
    net = SimpleNamespace(mask=lambda *_: np.array([False, False, True]))
    setup = SimpleNamespace(
        net=net,
        run=SimpleNamespace(stream_seed=0),
        shared=SimpleNamespace(mask=np.array(shared)),
    )
    model = LocalModel(
        np.array(theta, np.float32),
        setup,
        gradients=gradients,
        room=torch.empty((8, 3)),
        thresholds={},
        public_state={},
        shaped_sums=(),
    )
    return model, gradients


def make_client(count=7):
    return LocalClient(number=0, state={}, records=(OPTIMA[:count], np.arange(count)))


def after_steps(start, steps, rate=RATE, curvature=CURVATURE, centre=CENTRE):
    """Return weights after gradient steps on a quadratic, in closed form."""
    return centre + (1 - rate * curvature) ** steps * (start - centre)


def sent_by(update, model, client, index=0):
    (message,) = update.contributions(model, [client], index)
    return message.numpy()


def close(actual, expected):
    return np.allclose(actual, expected, rtol=0, atol=2e-6)


def test_fine_tuning_starts_at_the_last_model_and_sends_fedavgs_message():
    update = FineTuned(inner_steps=4, inner_rate=RATE, tuning_steps=6, tuning_rate=0.3)
    model, _ = model_at()
    client = make_client()
    assert close(START - sent_by(update, model, client), after_steps(START, 4))
    tuned = update.personal_model(model, client)
    assert close(tuned, after_steps(START, 6, rate=0.3))
    assert not client.state


def ditto_by_hand(thetas, *, penalty, rate, steps):
    """Return v_k after rounds from these models (Algorithm 1, lines of v_k)."""
    own = np.array(thetas[0], float)
    for theta in thetas:
        for _ in range(steps):
            slope = CURVATURE * (own - CENTRE)
            own = own - rate * (slope + penalty * (own - theta))
    return own


def test_ditto_keeps_the_personal_model_of_the_algorithm():
    """The planted fault: a term of the wrong sign pushes v away from the server."""
    update = Ditto(
        inner_steps=4,
        inner_rate=RATE,
        penalty=0.7,
        personal_steps=3,
        personal_rate=0.15,
    )
    thetas = [START, START + 1, 2 * START]
    client = make_client()
    for theta in thetas:
        model, _ = model_at(theta)
        sent = sent_by(update, model, client)
        assert close(theta - sent, after_steps(theta, 4))
    options = {"rate": 0.15, "steps": 3}
    kept = client.state["personal"]
    assert close(kept, ditto_by_hand(thetas, penalty=0.7, **options))
    wrong = ditto_by_hand(thetas, penalty=-0.7, **options)
    assert np.abs(kept.numpy() - wrong).max() > 0.1
    last, _ = model_at(3 * START)
    used = update.personal_model(last, client)
    assert close(used, ditto_by_hand([*thetas, 3 * START], penalty=0.7, **options))
    assert torch.equal(client.state["personal"], kept)


def test_ditto_sends_what_fedavg_sends_to_the_bit():
    """What the client keeps does not change its message."""
    model, _ = model_at()
    client = make_client()
    client.state["personal"] = torch.full((3,), 9.0)
    plain = ModelDifference(inner_steps=5, inner_rate=RATE)
    expected = sent_by(plain, model, make_client())
    update = Ditto(inner_steps=5, inner_rate=RATE)
    assert sent_by(update, model, client).tolist() == expected.tolist()


def test_fedrep_takes_steps_of_the_head_and_then_of_the_body():
    update = HeadThenBody(head_steps=3, head_rate=RATE, body_steps=2, body_rate=0.3)
    model, _ = model_at(shared=(True, True, False))
    client = make_client()
    sent = sent_by(update, model, client)
    body, head = slice(0, 2), slice(2, 3)
    assert close(START[body] - sent[body], after_steps(START, 2, rate=0.3)[body])
    first = after_steps(START, 3)[head]
    assert close(client.state["head"], first)
    # Later rounds go on from the client's own head, whatever the server has.
    sent_by(update, model, client)
    assert close(client.state["head"], after_steps(START, 6)[head])
    used = update.personal_model(model, client)
    assert close(used[body], START[body])
    assert close(used[head], after_steps(START, 9)[head])


def per_fedavg_by_hand(batches, *, alpha, beta):
    """Return the weights after steps with these pairs (D, D') of records."""
    weights = START.astype(float)
    for support, query in batches:
        slope = CURVATURE * (weights - OPTIMA[support].mean(axis=0))
        adapted = weights - alpha * slope
        weights = weights - beta * CURVATURE * (adapted - OPTIMA[query].mean(axis=0))
    return weights


def test_per_fedavg_looks_ahead_on_one_half_and_steps_on_the_other():
    """The planted faults: one batch for both gradients, and no look ahead."""
    update = PerFedAvg(inner_steps=3, inner_rate=0.3, adaptation_rate=0.4)
    model, gradients = model_at()
    sent = sent_by(update, model, make_client(), index=5)
    batches = list(zip(gradients.batches[::2], gradients.batches[1::2], strict=True))
    assert [(len(support), len(query)) for support, query in batches] == [(4, 3)] * 3
    for support, query in batches:
        assert sorted(support + query) == list(range(7))
    assert len({tuple(support) for support, _ in batches}) > 1
    assert close(START - sent, per_fedavg_by_hand(batches, alpha=0.4, beta=0.3))
    same = [(query, query) for _, query in batches]
    faults = [
        per_fedavg_by_hand(same, alpha=0.4, beta=0.3),
        per_fedavg_by_hand(batches, alpha=0.0, beta=0.3),
    ]
    assert min(np.abs(START - sent - fault).max() for fault in faults) > 0.02
    # Another round splits otherwise; the same round does not.
    assert not close(sent_by(update, model, make_client(), index=6), sent)
    assert close(sent_by(update, model, make_client(), index=5), sent)


def test_per_fedavg_client_adapts_by_one_step_on_all_its_records():
    update = PerFedAvg(adaptation_rate=0.4)
    model, _ = model_at()
    used = update.personal_model(model, make_client())
    assert close(used, after_steps(START, 1, rate=0.4))


def test_per_fedavg_client_of_one_record_sends_nothing():
    model, _ = model_at()
    assert not sent_by(PerFedAvg(), model, make_client(1)).any()


def test_local_training_sends_zeros_and_trains_from_the_initial_weights():
    update = NoMessage(inner_steps=8, inner_rate=RATE)
    model, gradients = model_at()
    client = make_client()
    assert not sent_by(update, model, client).any()
    assert not gradients.batches  # the message reads no record
    assert close(update.personal_model(model, client), after_steps(START, 8))


# Whole runs

OWN_TEST = {"clients": {"held_out_share": 0.25}, "participation": {"rounds": 3}}
SMALL_RATE = {"inner_steps": 2, "inner_rate": 0.1}
UPDATES = {
    "fine-tuned": {"kind": "fine-tuned", **SMALL_RATE},
    "ditto": {"kind": "ditto", **SMALL_RATE},
    "per-fedavg": {"kind": "per-fedavg", **SMALL_RATE},
}


def private_run(name, **sections):
    if name == "fedrep":
        return difference_config({"method": "dp-fedrep"}, OWN_TEST, sections)
    update = UPDATES.get(name, {"kind": "model-difference", **SMALL_RATE})
    return difference_config({"client_update": update}, OWN_TEST, sections)


@pytest.mark.parametrize("name", [*UPDATES, "fedrep"])
def test_personal_models_cost_no_epsilon_beyond_the_sums(name, silos, tmp_path):
    """One private sum a round of the same noise has DP-FedAvg's proven and claimed ε."""
    epsilons = []
    for run, folder in ((private_run(name), "own"), (private_run("plain"), "plain")):
        train(run, silos, tmp_path / folder)
        lines = ledger_in(tmp_path / folder)
        assert len(lines) == 3
        profiles = accounted(run, tmp_path / folder)["profiles"]
        epsilons.append(
            [profiles[profile]["epsilon_high"] for profile in ("claimed", "proven")]
        )
    assert epsilons[0] == epsilons[1]


def check_head_stays(run, silos, folder):
    """Check that no release has the head, whose coordinates stay as initialised."""
    rounds = rounds_of(run, silos, folder)
    before = rounds.theta.clone()
    take_rounds(rounds, 3)
    head = torch.from_numpy(rounds.net.mask("head"))
    assert {line.dimension for line in ledger_in(folder)} == {int((~head).sum())}
    assert torch.equal(rounds.theta[head], before[head])
    assert not torch.equal(rounds.theta[~head], before[~head])


def test_head_is_in_no_release_of_fedrep(silos, tmp_path):
    check_head_stays(private_run("fedrep"), silos, tmp_path)


def test_head_that_leaks_into_the_sum_is_noticed(silos, tmp_path, monkeypatch):
    """The planted fault: clients share the whole model."""
    run = private_run("fedrep")
    monkeypatch.setattr(DpFedRep, "shared", "all")
    with pytest.raises(AssertionError):
        check_head_stays(run, silos, tmp_path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("head-then-body", "share all: take the method"), ("no-message", "sends nothing")],
)
@pytest.mark.parametrize("method", ["fedavg", "dp-fedavg"])
def test_update_of_another_method_is_refused(method, kind, message):
    with pytest.raises(BenchError, match=message):
        difference_config({"method": method}, {"client_update": {"kind": kind}})


def own_weights(rounds):
    numbers = np.arange(4)
    return np.stack(
        list(rounds.clients.personal_weights(rounds.theta.numpy(), numbers))
    )


@pytest.mark.parametrize("name", [*UPDATES, "fedrep"])
def test_personal_model_reads_no_held_out_record(name, silos, tmp_path):
    """The planted fault: clients tune on their held-out share as well."""
    run = private_run(name, noise={"multiplier": 1e-3})
    rounds = take_rounds(rounds_of(run, silos, tmp_path), 2)
    held = rounds.held
    for trained, tested in zip(
        held.record_indices, held.test_record_indices, strict=True
    ):
        assert len(tested)
        assert not set(trained.tolist()) & set(tested.tolist())
    before = own_weights(rounds)
    held.test_images = [np.zeros_like(images) for images in held.test_images]
    held.test_labels = [np.zeros_like(labels) for labels in held.test_labels]
    assert np.array_equal(own_weights(rounds), before)
    for client in range(4):
        held.images[client] = np.concatenate(
            [held.images[client], held.test_images[client]]
        )
        held.labels[client] = np.concatenate(
            [held.labels[client], held.test_labels[client]]
        )
    assert not np.array_equal(own_weights(rounds), before)


def test_local_training_releases_nothing_of_the_data(silos, tmp_path):
    """The server's model stays at the initial weights, and no privacy is claimed."""
    update = {"client_update": {"inner_steps": 5, "inner_rate": 0.5}}
    run = difference_config({"method": "local-training"}, OWN_TEST, update)
    rounds = rounds_of(run, silos, tmp_path)
    before = rounds.theta.clone()
    take_rounds(rounds, 3)
    assert torch.equal(rounds.theta, before)
    assert not any(mean.any() for *_, mean in rounds.log)
    assert not run.private
    assert len({weights.tobytes() for weights in own_weights(rounds)}) == 4


def test_fedrep_without_privacy_shares_the_body_too(silos, tmp_path):
    run = difference_config({"method": "fedrep"}, OWN_TEST)
    rounds = take_rounds(rounds_of(run, silos, tmp_path), 1)
    assert METHODS["fedrep"].shared == METHODS["dp-fedrep"].shared
    assert rounds.shared.count == int((~rounds.net.mask("head")).sum())
