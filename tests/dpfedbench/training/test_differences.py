"""Clients that send model differences, and the server that sums them (DP-FedAvg)."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.papers.federated_averaging import CONTROL, DpScaffold
from dpfedbench.training.client_updates.client_update import Clients
from dploss.gaussian import joint_multiplier
from dpsum.composition import Composition
from tests.partitions import make_dirichlet

from .conftest import (
    accounted,
    client_examples,
    difference_config,
    mean_gradient,
    mean_loss,
    rounds_in_memory,
    rounds_of,
    train_model,
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


# SCAFFOLD with private sums: two mechanisms over the same clients, one budget

MODEL = "model-difference-sum"
EVERYONE = {
    "participation": {"kind": "poisson", "cohort": 4, "rounds": 3},
    "noise": {"multiplier": 1e-3},
    "control_noise": {"multiplier": 1e-3},
    "control_clipping": {"threshold": 0.25},
}


def scaffold_config(*overlays):
    return difference_config({"method": "dp-scaffold"}, *overlays)


class HugeMessages(Clients):
    """Clients whose messages are far above any threshold."""

    def contributions(self, theta, cohort, index):
        message = torch.full((len(cohort), 8), 1e6)
        yield torch.stack([message, -message]), np.zeros(len(cohort))

    def receive_broadcast(self, means):
        self.broadcast = means


@pytest.mark.parametrize("broadcasts_raw_sum", [False, True])
def test_scaffold_clips_both_messages_each_to_its_own_threshold(
    broadcasts_raw_sum, monkeypatch
):
    """Four messages of 1e6 in each of eight coordinates are clipped to C, along the
    diagonal.

    The planted fault: clients receive their sum without clipping and noise.
    """
    clients = HugeMessages()
    rounds = rounds_in_memory(scaffold_config(EVERYONE), 8, clients=clients)
    if broadcasts_raw_sum:
        control = rounds.further[0]
        release = control.release
        monkeypatch.setattr(control, "release", lambda total: 0 * release(total) - 4e6)
    rounds.round(0)
    is_clipped = np.allclose(clients.broadcast, -0.25 / 8**0.5, rtol=0, atol=5e-3)
    assert is_clipped is not broadcasts_raw_sum
    assert np.allclose(-rounds.theta.numpy(), 0.5 / 8**0.5, rtol=0, atol=5e-3)
    stated = {line.name: (line.sensitivity, line.denominator) for line in rounds.ledger}
    assert stated == {MODEL: (0.5, 4.0), CONTROL: (0.25, 4.0)}


def test_scaffold_budget_that_counts_one_sum_is_noticed(silos, tmp_path, monkeypatch):
    """The planted fault: each sum has the noise of the whole budget. The account of the
    ledger is above it.
    """
    finalize = Composition.finalize

    def finalize_each_alone(self):
        if self._is_final:
            return
        finalize(self)
        for share in self._shares.values():
            plan = share.plan
            whole = joint_multiplier(plan.multipliers)
            plan.noise_multiplier = whole
            plan.beside = [whole] * len(plan.beside)
            assert len(plan.multipliers) == 2

    monkeypatch.setattr(Composition, "finalize", finalize_each_alone)
    null = {"multiplier": None}
    budget = {"budget": {"epsilon": 3.0}, "noise": null, "control_noise": null}
    run = scaffold_config(budget)
    train_model(run, silos, tmp_path)
    with pytest.raises(BenchError, match="multipliers of control-difference-sum of"):
        accounted(run, tmp_path)


class Forgets(DpScaffold):
    name: ClassVar[str] = "forgets"

    def sums(self):
        return super().sums()[1:]


class Bare(DpScaffold):
    name: ClassVar[str] = "bare"

    def sums(self):
        control, model = super().sums()
        bare = type(control)(name=control.name, unit="client", observer="everyone")
        return [bare, model]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Forgets, f"also send {CONTROL}, but forgets takes further sums of nothing"),
        (Bare, f"{CONTROL} adds up the same contributions as {MODEL}, which is priv"),
    ],
)
def test_method_that_forgets_a_message_or_its_noise_is_refused(method, message):
    values = scaffold_config().plain() | {"method": method.name}
    with pytest.raises(BenchError, match=message):
        method.read(values)
