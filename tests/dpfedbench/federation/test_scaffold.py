"""SCAFFOLD with private sums: two mechanisms over the same clients, one budget, and
what must not get around them.
"""

import json
from typing import ClassVar

import numpy as np
import pytest
import torch

from dpfedbench.audit.report import audit
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.held_out import NoMeasures
from dpfedbench.federation import engine
from dpfedbench.federation.accounts import ledger_of
from dpfedbench.papers.federated_averaging import CONTROL, DpFedAvg, DpScaffold
from dpfedbench.parts.client_updates.client_update import Clients
from dpsum.budget import Budget
from dpsum.ledger import Ledger, read_ledger

from . import conftest
from .conftest import DIFFERENCE, Flat, accounted, rounds_of, stop_before, train

MODEL = "model-difference-sum"


def make_config(*overlays):
    return conftest.make_config(
        {"method": "dp-scaffold"}, *overlays, general=DIFFERENCE
    )


class Huge(Clients):
    """Clients whose messages are far above any threshold; they note what they hear."""

    def __init__(self):
        self.heard = []

    def contributions(self, theta, cohort, index):
        rows = torch.stack(
            [torch.full((len(cohort), 8), 1e6), torch.full((len(cohort), 8), -1e6)]
        )
        yield rows, np.zeros(len(cohort)), np.zeros(len(cohort))

    def hear(self, means):
        self.heard += means


def huge_rounds(config, tmp_path, clients):
    return engine.Rounds(
        config,
        net=Flat(8),
        held=None,
        gradients=None,
        measures=NoMeasures(),
        ledger=Ledger(tmp_path / "ledger"),
        clients=clients,
    )


ALL = {
    "participation": {"kind": "poisson", "cohort": 4, "rounds": 3},
    "noise": {"multiplier": 1e-3},
    "control_noise": {"multiplier": 1e-3},
    "control_clipping": {"threshold": 0.25},
}


def test_both_messages_are_clipped_each_to_its_own_threshold(tmp_path):
    """Four clients whose messages are 1e6 in each of eight coordinates: each counts as
    C long, along the diagonal.
    """
    clients = Huge()
    rounds = huge_rounds(make_config(ALL), tmp_path, clients)
    before = rounds.theta.clone()
    rounds.round(0)
    assert np.allclose(
        clients.heard[0], -0.25 / 8**0.5, rtol=0, atol=5e-3
    )  # over all four clients
    assert np.allclose((before - rounds.theta).numpy(), 0.5 / 8**0.5, rtol=0, atol=5e-3)
    stated = {
        line.name: (line.sensitivity, line.denominator)
        for line in read_ledger(tmp_path / "ledger")
    }
    assert stated == {MODEL: (0.5, 4.0), CONTROL: (0.25, 4.0)}


def faulty(monkeypatch, fault):
    """Plant a fault that a tired colleague would make."""
    rounds = engine.Rounds
    if fault == "sent unclipped":
        own = rounds._contributed

        def unclipped(self, index):
            cohort, totals, losses = own(self, index)
            rows = next(
                iter(self.clients.contributions(self.theta.numpy(), cohort, index))
            )[0][1]
            self.clients.hear([rows.numpy().sum(axis=0) / 4])
            return cohort, totals, losses

        monkeypatch.setattr(rounds, "_contributed", unclipped)
    elif fault == "released twice":
        step = rounds.round

        def again(self, index):
            done = step(self, index)
            total = self.further[0].open(index)
            for rows, _, _ in self.clients.contributions(
                self.theta.numpy(), self.plan.cohort(index), index
            ):
                total.add(rows[1])
            self.further[0].release(total)
            return done

        monkeypatch.setattr(rounds, "round", again)


def test_what_is_sent_around_the_sum_is_noticed(tmp_path, monkeypatch):
    """The fault: the server hears the clients' sum as it is. The test of both
    thresholds then fails.
    """
    faulty(monkeypatch, "sent unclipped")
    with pytest.raises(AssertionError):
        test_both_messages_are_clipped_each_to_its_own_threshold(tmp_path)


def test_a_second_release_of_a_round_is_refused(tmp_path, monkeypatch):
    faulty(monkeypatch, "released twice")
    with pytest.raises(
        BenchError, match="round 0 of control-difference-sum was released before"
    ):
        huge_rounds(make_config(ALL), tmp_path, Huge()).round(0)


def test_one_budget_covers_both_sums(silos, tmp_path):
    """Found noise: what both multipliers come to as one is what one sum alone would
    need for the same epsilon.
    """
    overlay = {"budget": {"epsilon": 3.0}, "noise": {"multiplier": None}}
    both = make_config(overlay, {"control_noise": {"multiplier": None}})
    alone = conftest.make_config(overlay, general=DIFFERENCE)
    found = {}
    for name, run in (("both", both), ("alone", alone)):
        train(run, silos, tmp_path / name)
        found[name] = read_ledger(tmp_path / name / "ledger.jsonl")
    z = {line.name: line.noise_multiplier for line in found["both"]}
    (one,) = {line.noise_multiplier for line in found["alone"]}
    together = (z[MODEL] ** -2 + z[CONTROL] ** -2) ** -0.5  # found noise is rounded up
    assert one <= together < 1.002 * one and z[MODEL] == z[CONTROL]
    account = accounted(both, tmp_path / "both")["profiles"]["holds"]
    assert account["epsilon_high"] <= 3.0 < account["epsilon_high"] * 1.01
    assert [line.name for line in found["both"][:4]] == [MODEL, CONTROL] * 2


def test_a_budget_that_counts_one_of_the_sums_is_noticed(silos, tmp_path, monkeypatch):
    """The fault: each sum by itself has the noise of the whole budget. The account of
    the ledger is above it.
    """
    own = Budget.settle

    def each_alone(self):
        if not self._settled:
            own(self)
            for names, plan in self._shared.values():
                whole = plan._together_under("holds")
                object.__setattr__(plan, "noise_multiplier", whole)
                plan.beside = [whole] * len(plan.beside)
                assert len(names) == 2

    monkeypatch.setattr(Budget, "settle", each_alone)
    overlay = {
        "budget": {"epsilon": 3.0},
        "noise": {"multiplier": None},
        "control_noise": {"multiplier": None},
    }
    run = make_config(overlay)
    train(run, silos, tmp_path)
    with pytest.raises(
        BenchError,
        match="the ledger has in round 0 multipliers of control-difference-sum of",
    ):
        accounted(run, tmp_path)


def test_a_method_that_forgets_a_message_or_its_noise_is_refused():
    values = make_config().plain()

    class Forgets(DpScaffold):
        name: ClassVar[str] = "forgets"

        def further_sums(self):
            return ()

    class Bare(DpScaffold):
        name: ClassVar[str] = "bare"

        def further_sums(self):
            return tuple(
                type(one)(name=one.name, unit="client", observer="everyone")
                for one in super().further_sums()
            )

    with pytest.raises(
        BenchError,
        match=f"also send {CONTROL}, but forgets takes further sums of nothing",
    ):
        Forgets.read(values | {"method": "forgets"})
    with pytest.raises(
        BenchError,
        match=f"{CONTROL} is of the same contributions as {MODEL}, which is private",
    ):
        Bare.read(values | {"method": "bare"})
    with pytest.raises(
        BenchError,
        match=r'client_update\.kind is "scaffold"',
    ):
        DpFedAvg.read(
            {
                **{k: v for k, v in values.items() if not k.startswith("control")},
                "method": "dp-fedavg",
            }
        )
    with pytest.raises(
        BenchError,
        match=r'participation\.kind is "fixed-size"',
    ):
        make_config({"participation": {"kind": "fixed-size", "cohort": 2, "rounds": 3}})


@pytest.mark.parametrize("method", ["dp-scaffold", "fedavg"])
def test_control_variates_survive_a_restart_and_threads(
    silos, tmp_path, monkeypatch, method
):
    overlay = {"method": method, "client_update": {"kind": "scaffold"}}
    run = conftest.make_config(overlay, general=DIFFERENCE)
    whole = train(run, silos, tmp_path / "whole")
    assert train(run, silos, tmp_path / "threads", threads=3) == whole
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 3)):
        train(run, silos, tmp_path / "resumed", checkpoint_seconds=0)
    assert train(run, silos, tmp_path / "resumed") == whole
    assert (
        json.loads((tmp_path / "resumed" / "training.json").read_text())["resumed"] == 1
    )
    plain = {
        "client_update": {"kind": "model-difference"},
        "method": {"dp-scaffold": "dp-fedavg"}.get(method, method),
    }
    other = train(
        conftest.make_config(plain, general=DIFFERENCE), silos, tmp_path / "plain"
    )
    assert other["model.safetensors"] != whole["model.safetensors"]


def test_without_privacy_rounds_of_everyone_are_those_of_the_algorithm(silos, tmp_path):
    """Through the whole loop, on a network: the first round has no correction; in the
    second, by the numbers of the first, each client's steps follow g - c_k + c.
    """
    overlay = {
        "method": "fedavg",
        "client_update": {"kind": "scaffold", "inner_steps": 2, "inner_rate": 0.1},
        "participation": {"kind": "poisson", "cohort": 4, "rounds": 2},
        "server": {"optimizer": {"momentum": 0.0}},
    }
    run = conftest.make_config(overlay, general=DIFFERENCE)
    rounds = rounds_of(run, silos, tmp_path)
    theta = rounds.theta.numpy().copy()
    ((first, _, _),) = rounds.clients.contributions(theta, np.arange(4), 0)
    first = first.numpy().copy()
    own = first[0] / 0.2  # c_k of round 1: the mean gradient of its steps
    assert np.allclose(first[1], own, atol=1e-6)
    fresh = rounds_of(run, silos, tmp_path / "again")
    fresh.round(0)
    assert np.allclose(fresh.theta.numpy(), theta - first[0].mean(axis=0), atol=1e-6)
    state = fresh.clients.state()
    assert np.allclose(state["server"], own.mean(axis=0), atol=1e-6)
    assert np.allclose(
        torch.stack([state["own"][client] for client in range(4)]), own, atol=1e-6
    )


def test_the_audit_finds_no_more_than_holds(silos, tmp_path):
    run = make_config()
    train(run, silos, tmp_path)
    report = audit(run, ledger_of(run, tmp_path), canaries=60)
    assert (
        report["epsilon"] <= report["epsilon_holds"] and not report["another_mechanism"]
    )
    assert [part["unit"] for part in (report, *report["also"])] == ["client"] * 2
