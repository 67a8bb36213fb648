"""FedProx and SCAFFOLD on quadratics, against closed forms and the algorithm."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpfedbench.papers.federated_averaging import CONTROL, Proximal, Scaffold
from dpfedbench.training.client_updates.model_difference import ModelDifference
from dpfedbench.training.processes import Processes
from dpsum.clipping import Constant


class Quadratic:
    """Stand-in for gradients of F_k(w) = a_k/2 ||w - b_k||^2, where the labels are k."""

    device = "cpu"

    def __init__(self, curvatures, optima):
        self.curvatures = curvatures
        self.optima = optima

    def evaluate(self, theta, images, labels):
        return SimpleNamespace(loss=0.0, accuracy=0.0)

    def summed_record_gradients(self, theta, images, labels, room):
        client = labels[0]
        gradient = self.curvatures[client] * (theta - self.optima[client])
        return len(labels) * np.float64(gradient)


def quadratic_setup(curvatures, optima, records, run):
    """Return a `Setup` of clients with `records` records each and quadratic losses."""

    def workers(make):
        return SimpleNamespace(
            count=1,
            running=lambda: ThreadPoolExecutor(1),
            worker=lambda: contextlib.nullcontext(make(Quadratic(curvatures, optima))),
        )

    count = len(curvatures)
    held = SimpleNamespace(
        images=[np.zeros((records, 1))] * count,
        labels=[np.full(records, client) for client in range(count)],
    )
    net = SimpleNamespace(dimension=len(optima[0]))
    return SimpleNamespace(
        held=held,
        net=net,
        shared=SharedCoordinates(net),
        workers=workers,
        run=run,
        processes=Processes(),
    )


# FedProx: one client of eleven records, which are two chunks

START = np.array([1.0, -2.0], np.float32)
OPTIMUM = np.array([3.0, 4.0], np.float32)
CURVATURE = 0.5


def difference(update):
    run = SimpleNamespace(sums=list, private=False, stream_seed=0)
    setup = quadratic_setup([CURVATURE], [OPTIMUM], 11, run)
    chunk = update.clients(setup).contributions(START, np.array([0]), 0)
    ((rows, _),) = chunk
    return rows[0].numpy().copy()


@pytest.mark.parametrize(("mu", "steps"), [(0.1, 7), (3.0, 7), (1.0, 200)])
def test_fedprox_on_a_quadratic_has_the_closed_form(mu, steps):
    """h has its optimum at (a b + mu w_0) / (a + mu), and each step leaves 1 - r (a +
    mu) of the distance to it.
    """
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


# SCAFFOLD: three clients, of which FedAvg finds another optimum than their mean's

CURVATURES = np.array([0.2, 1.0, 3.0])
OPTIMA = np.array([[3.0, 4.0], [-1.0, 0.5], [0.5, -2.0]])
BEST = (CURVATURES[:, None] * OPTIMA).sum(axis=0) / CURVATURES.sum()
"""Where the gradients of all clients' F_k add up to zero."""
RATE = 0.1
STEPS = 5
SCAFFOLD = Scaffold(inner_steps=STEPS, inner_rate=RATE)
EVERYONE = [[0, 1, 2]] * 12
COHORTS = [[0, 2], [1], [0, 1, 2], [2, 1], [0], [1, 2]] * 2


def make_clients(update, threshold=None):
    rule = None if threshold is None else Constant(threshold=threshold)
    control = SimpleNamespace(name=CONTROL, clipping=rule)
    run = SimpleNamespace(sums=lambda: [control], private=True, stream_seed=0)
    setup = quadratic_setup(CURVATURES, OPTIMA, 4, run)
    return update.clients(setup)


def server_control(clients):
    return clients.state()["public"]["control"]


def client_controls(clients):
    """Return the control variate of each client that has one."""
    states = clients.state()["clients"]
    return {client: state["control"] for client, state in states.items()}


def train(update, cohorts):
    """Return the model and the clients after these rounds. The server averages."""
    clients = make_clients(update)
    theta = np.zeros(2, np.float32)
    for cohort in cohorts:
        ((rows, _),) = clients.contributions(theta, np.array(cohort), 0)
        sent = rows.numpy()
        clients.receive_broadcast([sent[1].sum(axis=0, dtype=np.float64) / 3])
        theta = (theta - sent[0].mean(axis=0)).astype(np.float32)
    return theta, clients


def train_by_hand(cohorts):
    """Compute Algorithm 1 with option II and server rate 1 in double precision.

    Names are those of the paper.
    """
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
    theta, clients = train(SCAFFOLD, cohorts)
    x, c, controls = train_by_hand(cohorts)
    assert np.allclose(theta, x, atol=1e-5)
    assert np.allclose(server_control(clients), c, atol=1e-5)
    by_client = client_controls(clients)
    variates = [by_client[client] for client in range(3)]
    assert np.allclose(variates, controls, atol=1e-5)
    assert np.allclose(c, controls.mean(axis=0))


def test_scaffold_without_its_correction_misses_the_optimum(monkeypatch):
    """The planted fault: clients step along their own gradients, as FedAvg's do."""
    assert np.allclose(train(SCAFFOLD, EVERYONE * 40)[0], BEST, atol=1e-4)
    steps = Scaffold.corrected_steps

    def uncorrected(self, model, client, correction):
        return steps(self, model, client, torch.zeros_like(correction))

    monkeypatch.setattr(Scaffold, "corrected_steps", uncorrected)
    assert np.linalg.norm(train(SCAFFOLD, EVERYONE * 40)[0] - BEST) > 0.1


def test_scaffold_client_keeps_the_clipped_message():
    """So the mean of all control variates is the server's sum of messages of norm at
    most C.
    """
    clients = make_clients(SCAFFOLD, threshold=0.05)
    total = np.zeros(2)
    theta = np.array([5.0, 5.0], np.float32)
    for _ in range(3):
        ((rows, _),) = clients.contributions(theta, np.arange(3), 0)
        messages = rows[1].numpy().copy()
        assert np.allclose(np.linalg.norm(messages, axis=1), 0.05, rtol=1e-5)
        total += messages.sum(axis=0) / 3
        clients.receive_broadcast([messages.sum(axis=0, dtype=np.float64) / 3])
    variates = torch.stack(list(client_controls(clients).values()))
    assert np.allclose(variates.mean(dim=0), total, atol=1e-6)
    assert np.allclose(server_control(clients), total, atol=1e-6)
