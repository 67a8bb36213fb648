"""SCAFFOLD with private sums: two mechanisms over the same clients, one budget."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
import torch

from dpfedbench.audit.report import audit
from dpfedbench.errors import BenchError
from dpfedbench.papers.federated_averaging import CONTROL, DpScaffold
from dpfedbench.training import engine
from dpfedbench.training.client_updates.client_update import Clients
from dpsum.accounting.gaussian import joint_multiplier
from dpsum.composition import Composition

from .conftest import (
    accounted,
    difference_config,
    ledger_in,
    proven,
    rounds_in_memory,
    rounds_of,
    train,
)

MODEL = "model-difference-sum"
EVERYONE = {
    "participation": {"kind": "poisson", "cohort": 4, "rounds": 3},
    "noise": {"multiplier": 1e-3},
    "control_noise": {"multiplier": 1e-3},
    "control_clipping": {"threshold": 0.25},
}
CALIBRATED = {
    "budget": {"epsilon": 3.0},
    "noise": {"multiplier": None},
    "control_noise": {"multiplier": None},
}


def make_config(*overlays):
    return difference_config({"method": "dp-scaffold"}, *overlays)


class HugeMessages(Clients):
    """Clients whose messages are far above any threshold. They keep the means that the
    server broadcasts.
    """

    def __init__(self):
        self.broadcasts = []

    def contributions(self, theta, cohort, index):
        message = torch.full((len(cohort), 8), 1e6)
        zeros = np.zeros(len(cohort))
        yield torch.stack([message, -message]), zeros, zeros

    def receive_broadcast(self, means):
        self.broadcasts += means


@pytest.fixture
def rounds():
    return rounds_in_memory(make_config(EVERYONE), 8, clients=HugeMessages())


def check_thresholds(rounds):
    """Check that each of four messages of 1e6 in each of eight coordinates is clipped
    to C, along the diagonal.
    """
    before = rounds.theta.clone()
    rounds.round(0)
    broadcast = rounds.clients.broadcasts[0]
    moved = (before - rounds.theta).numpy()
    assert np.allclose(broadcast, -0.25 / 8**0.5, rtol=0, atol=5e-3)
    assert np.allclose(moved, 0.5 / 8**0.5, rtol=0, atol=5e-3)
    stated = {line.name: (line.sensitivity, line.denominator) for line in rounds.ledger}
    assert stated == {MODEL: (0.5, 4.0), CONTROL: (0.25, 4.0)}


def test_scaffold_clips_both_messages_each_to_its_own_threshold(rounds):
    check_thresholds(rounds)


def test_scaffold_that_broadcasts_the_raw_sum_is_noticed(rounds, monkeypatch):
    """The planted fault: clients receive their sum without clipping and noise."""
    contributed = engine.Rounds._contributed

    def unclipped(self, index):
        cohort, totals, losses = contributed(self, index)
        theta = self.theta.numpy()
        ((rows, _, _),) = self.clients.contributions(theta, cohort, index)
        self.clients.receive_broadcast([rows[1].numpy().sum(axis=0) / 4])
        return cohort, totals, losses

    monkeypatch.setattr(engine.Rounds, "_contributed", unclipped)
    with pytest.raises(AssertionError):
        check_thresholds(rounds)


def test_scaffold_refuses_a_second_release_of_a_round(rounds):
    rounds.round(0)
    (control,) = rounds.further
    with pytest.raises(BenchError, match="control-difference-sum was released before"):
        control.release(control.begin_round(0))


def test_scaffold_has_one_budget_for_both_sums(silos, tmp_path):
    """Both calibrated multipliers together cost as much as one sum's multiplier for the
    same epsilon, rounded up.
    """
    config = make_config(CALIBRATED)
    train(config, silos, tmp_path / "both")
    ledger = ledger_in(tmp_path / "both")
    assert [line.name for line in ledger[:4]] == [MODEL, CONTROL] * 2
    z = {line.name: line.noise_multiplier for line in ledger}
    overlay = {"budget": {"epsilon": 3.0}, "noise": {"multiplier": None}}
    train(difference_config(overlay), silos, tmp_path / "alone")
    single = ledger_in(tmp_path / "alone")[0].noise_multiplier
    joint = (z[MODEL] ** -2 + z[CONTROL] ** -2) ** -0.5
    assert single <= joint < 1.002 * single
    assert z[MODEL] == z[CONTROL]
    epsilon = proven(config, tmp_path / "both")["epsilon_high"]
    assert epsilon <= 3.0 < epsilon * 1.01


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
    run = make_config(CALIBRATED)
    train(run, silos, tmp_path)
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


class WrongOrder(DpScaffold):
    name: ClassVar[str] = "wrong-order"

    def sums(self):
        control, model = super().sums()
        return [control, dataclasses.replace(model, taken_by="client")]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (WrongOrder, "the last sum of wrong-order is not taken by the server"),
        (Forgets, f"also send {CONTROL}, but forgets takes further sums of nothing"),
        (
            Bare,
            f"{CONTROL} adds up the same contributions as {MODEL}, which is private",
        ),
    ],
)
def test_method_that_forgets_a_message_or_its_noise_is_refused(method, message):
    values = make_config().plain() | {"method": method.name}
    with pytest.raises(BenchError, match=message):
        method.read(values)


def test_plain_scaffold_over_everyone_is_the_published_algorithm(silos, tmp_path):
    """The whole loop, on a network. The first round has no correction. In the second,
    each client's steps follow g - c_k + c with the values of the first.
    """
    overlay = {
        "method": "fedavg",
        "client_update": {"kind": "scaffold", "inner_steps": 2, "inner_rate": 0.1},
        "participation": {"kind": "poisson", "cohort": 4, "rounds": 2},
        "server": {"optimizer": {"momentum": 0.0}},
    }
    run = difference_config(overlay)
    rounds = rounds_of(run, silos, tmp_path)
    theta = rounds.theta.numpy().copy()
    ((rows, _, _),) = rounds.clients.contributions(theta, np.arange(4), 0)
    differences, controls = rows.numpy().copy()
    variates = differences / 0.2  # c_k of round 1: the mean gradient of its steps
    assert np.allclose(controls, variates, atol=1e-6)
    fresh = rounds_of(run, silos, tmp_path / "again")
    fresh.round(0)
    expected = theta - differences.mean(axis=0)
    assert np.allclose(fresh.theta.numpy(), expected, atol=1e-6)
    state = fresh.clients.state()
    control = state["public"]["control"]
    assert np.allclose(control, variates.mean(axis=0), atol=1e-6)
    clients = torch.stack([state["clients"][n]["control"] for n in range(4)])
    assert np.allclose(clients, variates, atol=1e-6)


def test_scaffold_audit_is_not_above_what_is_proven(silos, tmp_path):
    run = make_config()
    train(run, silos, tmp_path)
    report = audit(run, ledger_in(tmp_path), canaries=60)
    assert report["epsilon"] <= report["epsilon_proven"]
    assert not report["another_mechanism"]
    assert [part["unit"] for part in (report, *report["also"])] == ["client"] * 2
