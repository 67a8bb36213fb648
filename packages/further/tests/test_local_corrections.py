"""FedProx and SCAFFOLD on quadratics, against closed forms and the algorithm."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpfedbench.training.client_updates.model_difference import ModelDifference
from dpfedbench.training.distributed import Processes
from dpsum.clipping import Constant
from further.fedprox import Proximal
from further.scaffold import CONTROL, Scaffold


def make_clients(update, curvatures, optima, records, sums=()):
    """Return clients k of losses F_k(w) = a_k/2 ||w - b_k||^2, whose labels are k."""

    def summed_record_gradients(theta, images, labels, room):
        client = labels[0]
        return len(labels) * np.float64(curvatures[client] * (theta - optima[client]))

    gradients = SimpleNamespace(
        device="cpu",
        evaluate=lambda *_: SimpleNamespace(loss=0.0, accuracy=0.0),
        summed_record_gradients=summed_record_gradients,
    )
    held = SimpleNamespace(
        images=[np.zeros((records, 1))] * len(optima),
        labels=[np.full(records, client) for client in range(len(optima))],
    )
    net = SimpleNamespace(dimension=2)
    server = SimpleNamespace(name="update", clipping=None, shape=None)
    setup = SimpleNamespace(
        held=held,
        net=net,
        shared=SharedCoordinates(net),
        workers=lambda make: SimpleNamespace(
            count=1,
            running=lambda: ThreadPoolExecutor(1),
            worker=lambda: contextlib.nullcontext(make(gradients)),
        ),
        run=SimpleNamespace(
            all_sums=(*sums, server),
            server_sum=server,
            further_sums=sums,
            private=bool(sums),
            stream_seed=0,
        ),
        processes=Processes(),
    )
    return update.clients(setup)


START = np.array([1.0, -2.0], np.float32)
OPTIMUM = np.array([3.0, 4.0], np.float32)
CURVATURE = 0.5


def difference(update):
    """Return what a client of eleven records, which are two chunks, sends."""
    clients = make_clients(update, [CURVATURE], [OPTIMUM], 11)
    ((rows, _),) = clients.contributions(START, np.array([0]), 0)
    return rows[0].numpy().copy()


@pytest.mark.parametrize(("mu", "steps"), [(0.1, 7), (3.0, 7), (1.0, 200)])
def test_fedprox_on_a_quadratic_has_the_closed_form(mu, steps):
    """The optimum is (a b + mu w_0) / (a + mu); a step leaves 1 - r (a + mu) to it."""
    rate = 0.2
    centre = (CURVATURE * OPTIMUM + mu * START) / (CURVATURE + mu)
    end = centre + (1 - rate * (CURVATURE + mu)) ** steps * (START - centre)
    sent = difference(Proximal(mu=mu, inner_steps=steps, inner_rate=rate))
    assert np.allclose(START - sent, end, rtol=0, atol=2e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fedprox_without_the_term_is_the_model_difference_to_the_bit(optimizer):
    values = {"inner_steps": 9, "inner_rate": 0.07, "optimizer": {"kind": optimizer}}
    plain = difference(ModelDifference.read(values)).tolist()
    assert difference(Proximal.read({"mu": 0.0, **values})).tolist() == plain
    assert difference(Proximal.read({"mu": 0.5, **values})).tolist() != plain


CURVATURES = np.array([0.2, 1.0, 3.0])
OPTIMA = np.array([[3.0, 4.0], [-1.0, 0.5], [0.5, -2.0]])
BEST = (CURVATURES[:, None] * OPTIMA).sum(axis=0) / CURVATURES.sum()
"""Where the gradients of all F_k add up to zero: FedAvg finds another optimum."""
RATE = 0.1
STEPS = 5
EVERYONE = [[0, 1, 2]] * 12
COHORTS = [[0, 2], [1], [0, 1, 2], [2, 1], [0], [1, 2]] * 2


def scaffold_clients(threshold=None):
    rule = None if threshold is None else Constant(threshold=threshold)
    control = SimpleNamespace(name=CONTROL, clipping=rule, shape=None)
    update = Scaffold(inner_steps=STEPS, inner_rate=RATE)
    return make_clients(update, CURVATURES, OPTIMA, 4, [control])


def controls_of(clients):
    """Return the control variates of the server and of the three clients."""
    state = clients.state()
    controls = [state["clients"][client]["control"] for client in range(3)]
    return state["public"]["control"], torch.stack(controls)


def train(cohorts):
    """Return the model and the clients after these rounds. The server averages."""
    clients = scaffold_clients()
    theta = np.zeros(2, np.float32)
    for cohort in cohorts:
        ((rows, _),) = clients.contributions(theta, np.array(cohort), 0)
        sent = [message.numpy() for message in rows]
        clients.receive_broadcast([sent[1].sum(axis=0, dtype=np.float64) / 3])
        theta = (theta - sent[0].mean(axis=0)).astype(np.float32)
    return theta, clients


def train_by_hand(cohorts):
    """Compute Algorithm 1 with option II and server rate 1, in the paper's names."""
    x = np.zeros(2)
    c = np.zeros(2)
    c_i = np.zeros((3, 2))
    for cohort in cohorts:
        moved = []
        controls = []
        for i in cohort:
            y = x.copy()
            for _ in range(STEPS):
                y = y - RATE * (CURVATURES[i] * (y - OPTIMA[i]) - c_i[i] + c)
            new = c_i[i] - c + (x - y) / (STEPS * RATE)
            moved.append(y - x)
            controls.append(new - c_i[i])
            c_i[i] = new
        x = x + np.mean(moved, axis=0)
        c = c + np.sum(controls, axis=0) / 3
    return x, c, c_i


@pytest.mark.parametrize("cohorts", [EVERYONE, COHORTS])
def test_scaffold_rounds_are_those_of_the_algorithm(cohorts):
    theta, clients = train(cohorts)
    x, c, controls = train_by_hand(cohorts)
    assert np.allclose(theta, x, atol=1e-5)
    server, variates = controls_of(clients)
    assert np.allclose(server, c, atol=1e-5)
    assert np.allclose(variates, controls, atol=1e-5)
    assert np.allclose(c, controls.mean(axis=0))


def test_scaffold_without_its_correction_misses_the_optimum(monkeypatch):
    """The planted fault: clients step along their own gradients, as FedAvg's do."""
    assert np.allclose(train(EVERYONE * 40)[0], BEST, atol=1e-4)
    steps = Scaffold.corrected_steps

    def uncorrected(self, model, client, correction):
        return steps(self, model, client, torch.zeros_like(correction))

    monkeypatch.setattr(Scaffold, "corrected_steps", uncorrected)
    assert np.linalg.norm(train(EVERYONE * 40)[0] - BEST) > 0.1


def test_scaffold_client_keeps_the_clipped_message():
    """So the mean of all control variates is the server's sum of clipped messages."""
    clients = scaffold_clients(threshold=0.05)
    total = np.zeros(2)
    theta = np.array([5.0, 5.0], np.float32)
    for _ in range(3):
        ((rows, _),) = clients.contributions(theta, np.arange(3), 0)
        messages = rows[1].numpy().copy()
        assert np.allclose(np.linalg.norm(messages, axis=1), 0.05, rtol=1e-5)
        total += messages.sum(axis=0) / 3
        clients.receive_broadcast([messages.sum(axis=0, dtype=np.float64) / 3])
    server, variates = controls_of(clients)
    assert np.allclose(variates.mean(dim=0), total, atol=1e-6)
    assert np.allclose(server, total, atol=1e-6)
