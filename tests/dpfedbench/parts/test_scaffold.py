"""SCAFFOLD against the algorithm written out, on quadratics of which FedAvg finds
another optimum than their mean's.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.federation.processes import Processes
from dpfedbench.papers.federated_averaging import CONTROL, Scaffold
from dpfedbench.parts.client_updates.model_difference import ModelDifference
from dpsum.clipping import Constant
from tests.dpfedbench.federation.conftest import DIFFERENCE, make_config

CURVATURES = np.array([0.2, 1.0, 3.0])
OPTIMA = np.array([[3.0, 4.0], [-1.0, 0.5], [0.5, -2.0]])
BEST = (CURVATURES[:, None] * OPTIMA).sum(axis=0) / CURVATURES.sum()
"""Where the gradients of all clients' F_k(w) = a_k/2 ||w - b_k||^2 add up to zero."""
RATE, STEPS = 0.1, 5


class Quadratic:
    """Gradients of a client's F; its labels are its number."""

    device = "cpu"

    def evaluate(self, theta, images, labels):
        return SimpleNamespace(loss=0.0, accuracy=0.0)

    def added(self, theta, images, labels, room):
        return len(labels) * CURVATURES[labels[0]] * (theta - OPTIMA[labels[0]])


class Fake(Processes):
    """One of several processes, that hears nothing of the others."""

    def all(self, value):
        return [value]

    def collected(self, value):
        return [value]


def clients(update, threshold=None, processes=None):
    def workers(make):
        return SimpleNamespace(
            count=1,
            running=lambda: ThreadPoolExecutor(1),
            worker=lambda: contextlib.nullcontext(make(Quadratic())),
        )

    held = SimpleNamespace(
        images=[np.zeros((4, 1))] * 3,
        labels=[np.full(4, client) for client in range(3)],
    )
    rule = None if threshold is None else Constant(threshold=threshold)
    sums = [SimpleNamespace(name=CONTROL, clipping=rule)]
    run = SimpleNamespace(sums=lambda: sums, private=True)
    setup = SimpleNamespace(
        held=held,
        net=SimpleNamespace(dimension=2),
        shared=None,
        workers=workers,
        run=run,
        processes=processes or Processes(),
    )
    return update.clients(setup)


def server_control(clients):
    return clients.state()["public"]["control"]


def client_controls(clients):
    """The control variate of each client that has one."""
    states = clients.state()["clients"]
    return {client: state["control"] for client, state in states.items()}


def trained(update, cohorts, rounds=None):
    """The model after so many rounds whose server averages, as floats [2], and the
    clients.
    """
    own, theta = clients(update), np.zeros(2, np.float32)
    for cohort in cohorts:
        ((sent, _, _),) = own.contributions(theta, np.array(cohort), 0)
        sent = sent.numpy()
        if update.sends_too:
            own.hear([sent[1].sum(axis=0, dtype=np.float64) / 3])
            sent = sent[0]
        theta = (theta - sent.mean(axis=0)).astype(np.float32)
    return theta, own


def by_hand(cohorts):
    """Algorithm 1 with option II, server rate 1, in double precision; every number by
    the paper's names.
    """
    x, c, own = np.zeros(2), np.zeros(2), np.zeros((3, 2))
    for cohort in cohorts:
        moved, controls = [], []
        for i in cohort:
            y = x.copy()
            for _ in range(STEPS):
                y = y - RATE * (CURVATURES[i] * (y - OPTIMA[i]) - own[i] + c)
            new = own[i] - c + (x - y) / (STEPS * RATE)
            moved.append(y - x)
            controls.append(new - own[i])
            own[i] = new
        x = x + np.mean(moved, axis=0)
        c = c + np.sum(controls, axis=0) / 3
    return x, c, own


SCAFFOLD, FEDAVG = (
    kind(inner_steps=STEPS, inner_rate=RATE) for kind in (Scaffold, ModelDifference)
)
EVERYONE, SOME = [[0, 1, 2]] * 12, [[0, 2], [1], [0, 1, 2], [2, 1], [0], [1, 2]] * 2


@pytest.mark.parametrize("cohorts", [EVERYONE, SOME])
def test_each_round_is_that_of_the_algorithm(cohorts):
    theta, own = trained(SCAFFOLD, cohorts)
    x, c, controls = by_hand(cohorts)
    assert np.allclose(theta, x, atol=1e-5)
    assert np.allclose(server_control(own), c, atol=1e-5)
    kept = client_controls(own)
    assert np.allclose([kept[client] for client in range(3)], controls, atol=1e-5)
    assert np.allclose(c, controls.mean(axis=0))


def test_fedavg_stays_off_the_optimum_and_scaffold_comes_to_it():
    """FedAvg's fixed point, of clients that each leave (1 - r a_k)^K of their way:
    weights 1 - (1 - r a_k)^K.
    """
    weights = 1 - (1 - RATE * CURVATURES) ** STEPS
    wrong = (weights[:, None] * OPTIMA).sum(axis=0) / weights.sum()
    assert np.linalg.norm(wrong - BEST) > 0.1
    assert np.allclose(trained(FEDAVG, EVERYONE * 40)[0], wrong, atol=1e-4)
    assert np.allclose(trained(SCAFFOLD, EVERYONE * 40)[0], BEST, atol=1e-4)


def test_control_variates_that_are_not_taken_off_are_noticed(monkeypatch):
    """The fault: steps along the clients' own gradients. It ends where FedAvg does."""
    corrected_steps = Scaffold.corrected_steps
    monkeypatch.setattr(
        Scaffold,
        "corrected_steps",
        lambda self, model, client, correction: corrected_steps(
            self, model, client, torch.zeros_like(correction)
        ),
    )
    assert np.linalg.norm(trained(SCAFFOLD, EVERYONE * 40)[0] - BEST) > 0.1


def test_a_client_keeps_what_it_sent_where_that_is_clipped():
    """So the mean of all control variates is what the server adds up: what each sends
    is at most C long.
    """
    own = clients(SCAFFOLD, threshold=0.05)
    total, theta = np.zeros(2), np.array([5.0, 5.0], np.float32)
    for _ in range(3):
        ((sent, _, _),) = own.contributions(theta, np.arange(3), 0)
        norms = np.linalg.norm(sent[1].numpy(), axis=1)
        assert np.allclose(norms, 0.05, rtol=1e-5)
        total += sent[1].numpy().sum(axis=0) / 3
        own.hear([sent[1].numpy().sum(axis=0, dtype=np.float64) / 3])
    controls = torch.stack(list(client_controls(own).values()))
    assert np.allclose(controls.mean(dim=0), total, atol=1e-6)
    assert np.allclose(server_control(own), total, atol=1e-6)


def test_two_processes_keep_what_one_would():
    """Each computes its clients alone; what both have together is what one process has,
    to the bit, also once it is restored.
    """
    alone, parts = (
        clients(SCAFFOLD),
        [clients(SCAFFOLD, processes=Fake(rank, 2)) for rank in range(2)],
    )
    theta = np.array([1.0, -1.0], np.float32)
    for _ in range(3):
        ((whole, _, _),) = alone.contributions(theta, np.arange(3), 0)
        rows = [
            next(iter(part.contributions(theta, np.arange(3), 0)))[0] for part in parts
        ]
        assert torch.equal(rows[0][:, [0, 2]], whole[:, [0, 2]]) and torch.equal(
            rows[1][:, [1]], whole[:, [1]]
        )
        means = [whole[1].numpy().sum(axis=0, dtype=np.float64) / 3]
        for each in (alone, *parts):
            each.hear(means)
        kept = client_controls(parts[0]) | client_controls(parts[1])
        assert {client: own.tolist() for client, own in kept.items()} == {
            client: own.tolist() for client, own in client_controls(alone).items()
        }
        for part in parts:
            part.restore(alone.state())
        assert sorted(client_controls(parts[0])) == [0, 2]
        assert sorted(client_controls(parts[1])) == [1]


def test_steps_of_another_optimiser_are_refused():
    for optimizer in ("adam", {"kind": "sgd", "momentum": 0.5}):
        with pytest.raises(
            BenchError, match=r"client_update\.optimizer has to be sgd without momentum"
        ):
            make_config(
                {
                    "method": "fedavg",
                    "client_update": {"kind": "scaffold", "optimizer": optimizer},
                },
                general=DIFFERENCE,
            )
