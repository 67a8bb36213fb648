"""Methods whose clients share some coordinates of the model: clipping, noise, ledger,
audit and the server's step are of those alone.
"""

import types
from typing import ClassVar

import numpy as np
import pytest
import torch

from dpfedbench.audit.report import audit
from dpfedbench.errors import BenchError
from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpfedbench.papers.federated_averaging import DpFedAvg, DpScaffold
from dpfedbench.parts.server.server_step import Step
from dpsum.group_clipping import CoordinateGroups

from . import conftest
from .conftest import (
    DIFFERENCE,
    FlatNet,
    fixed_rounds,
    ledger_in,
    proven,
    rounds_of,
    train,
    training_in,
)


class BodyFedAvg(DpFedAvg):
    name: ClassVar[str] = "body-fed-avg"
    shared: ClassVar[str] = "body"


class BodyScaffold(DpScaffold):
    name: ClassVar[str] = "body-scaffold"
    shared: ClassVar[str] = "body"


class OddFedAvg(DpFedAvg):
    """FedAvg whose clients share every other coordinate."""

    name: ClassVar[str] = "odd-fed-avg"

    def shared_mask(self, net):
        return np.arange(net.dimension) % 2 == 1


def config_of(method, *overlays):
    base = {"method": "dp-scaffold" if issubclass(method, DpScaffold) else "dp-fedavg"}
    run = conftest.make_config(base, *overlays, general=DIFFERENCE)
    return method.read(run.plain() | {"method": method.name})


def head_of(rounds):
    return rounds.net.mask("head")


@pytest.mark.parametrize(
    "overlay", [{}, {"clipping": {"groups": "layers", "noise_by_group": "joint"}}]
)
def test_shared_body_has_noise_and_the_head_has_none(silos, tmp_path, overlay):
    run = config_of(BodyFedAvg, overlay)
    train(run, silos, tmp_path / "run")
    rounds = rounds_of(run, silos, tmp_path / "rounds")
    initial = rounds.theta.clone()
    for index in range(run.participation.rounds):
        rounds.round(index)
    moved = (rounds.theta != initial).numpy()
    head = head_of(rounds)
    assert not moved[head].any()
    assert moved[~head].mean() > 0.99
    shared = int((~head).sum())
    assert {line.dimension for line in ledger_in(tmp_path / "run")} == {shared}
    assert training_in(tmp_path / "run")["shared_parameters"] == shared
    whole = conftest.make_config(overlay, general=DIFFERENCE)
    train(whole, silos, tmp_path / "whole")
    assert proven(run, tmp_path / "run") == proven(whole, tmp_path / "whole")


def check_odd_coordinates_move():
    """Check that four clients with 3 and 4 in the two shared coordinates are clipped to
    (0.3, 0.4), C = 0.5, whatever the other two coordinates have.
    """
    overlay = {
        "participation": {"kind": "poisson", "cohort": 4, "rounds": 3},
        "noise": {"multiplier": 1e-3},
        "server": {"optimizer": {"momentum": 0.0}},
    }
    rows = np.tile([1e6, 3.0, -1e6, 4.0], (4, 1))
    rounds = fixed_rounds(config_of(OddFedAvg, overlay), rows)
    rounds.round(0)
    moved = -rounds.theta.numpy()
    assert np.allclose(moved, [0.0, 0.3, 0.0, 0.4], atol=5e-3)
    assert [line.dimension for line in rounds.ledger] == [2]


def test_shared_coordinates_alone_are_clipped():
    check_odd_coordinates_move()


def test_norm_over_all_coordinates_is_noticed(monkeypatch):
    """The planted fault: contributions are clipped before the shared coordinates are
    taken.
    """
    select = SharedCoordinates.select

    def clipped_as_a_whole(self, vectors):
        if vectors.ndim == 2:
            norms = vectors.norm(dim=1, keepdim=True)
            vectors = vectors * torch.clamp(0.5 / norms, max=1.0)
        return select(self, vectors)

    monkeypatch.setattr(SharedCoordinates, "select", clipped_as_a_whole)
    with pytest.raises(AssertionError):
        check_odd_coordinates_move()
    report = audit(config_of(BodyFedAvg, AUDITED), audited_ledger(), canaries=400)
    assert report["another_mechanism"]


AUDITED = {
    "clients": {"count": 400, "fragments": 400},
    "participation": {"kind": "one-pass", "cohort": 40, "rounds": 10},
}


def audited_ledger():
    """Return the ledger of the audited run. It is the same whatever clients send."""
    run = config_of(BodyFedAvg, AUDITED)
    mask = np.array([True, True, True, False])
    shared = SharedCoordinates(FlatNet(4), mask)
    rounds = fixed_rounds(run, np.zeros((400, 4)), shared=shared)
    for index in range(run.participation.rounds):
        rounds.round(index)
    return rounds.ledger


@pytest.mark.parametrize(
    "overlay", [{}, {"clipping": {"groups": "tensors", "noise_by_group": "joint"}}]
)
def test_audit_has_its_canaries_in_shared_coordinates(overlay, monkeypatch):
    monkeypatch.setattr(
        FlatNet,
        "coordinate_groups",
        lambda self, kind, noise: CoordinateGroups((0, 1, 3, 4), noise),
        raising=False,
    )
    monkeypatch.setitem(AUDITED, "clipping", overlay.get("clipping", {}))
    run = config_of(BodyFedAvg, AUDITED)
    report = audit(run, audited_ledger(), canaries=400)
    assert 0 < report["epsilon"] <= report["epsilon_proven"]
    assert not report["another_mechanism"]


def test_canary_in_the_head_is_noticed(monkeypatch):
    """The planted fault: canaries are in coordinates that no client sends, so no
    release shows them.
    """
    from dpfedbench.audit import units

    spread = units.Coordinates.spread

    def into_the_head(self, rows):
        rows = rows.copy()
        rows[:, self.ordinary :] = 0
        return spread(self, rows)

    monkeypatch.setattr(units.Coordinates, "spread", into_the_head)
    run = config_of(BodyFedAvg, AUDITED)
    report = audit(run, audited_ledger(), canaries=400)
    assert report["epsilon"] == 0
    assert report["another_mechanism"]


def test_control_variates_of_a_shared_body_leave_the_head_alone(silos, tmp_path):
    run = config_of(BodyScaffold, {"participation": {"cohort": 4, "rounds": 3}})
    rounds = rounds_of(run, silos, tmp_path)
    head = head_of(rounds)
    initial = rounds.theta.clone()
    for index in range(3):
        rounds.round(index)
    state = rounds.clients.state()
    assert not state["public"]["control"].numpy()[head].any()
    controls = [values["control"].numpy() for values in state["clients"].values()]
    assert controls
    assert not any(control[head].any() for control in controls)
    assert torch.equal(rounds.theta[head], initial[head])
    assert {line.dimension for line in ledger_in(tmp_path)} == {int((~head).sum())}


def test_layout_is_handed_to_the_server_step(silos, tmp_path, monkeypatch):
    layouts = []
    monkeypatch.setattr(
        Step, "receive_layout", lambda self, state, layout: layouts.append(layout)
    )
    whole = rounds_of(conftest.make_config(general=DIFFERENCE), silos, tmp_path / "a")
    body = rounds_of(config_of(BodyFedAvg), silos, tmp_path / "b")
    assert layouts[0].head.tolist() == head_of(whole).tolist()
    assert len(layouts[1].head) == layouts[1].count == body.shared.count
    assert not layouts[1].head.any()


def test_groups_are_cut_to_the_shared_coordinates():
    mask = np.array([False, True, False, False, True, True])
    shared = SharedCoordinates(types.SimpleNamespace(dimension=6), mask)
    groups = CoordinateGroups((0, 2, 4, 6), names=("a", "b", "c"))
    shared_groups = shared.groups(groups)
    assert shared_groups.boundaries == (0, 1, 3)
    assert shared_groups.names == ("a", "c")
    values = np.arange(6.0)
    assert shared.select(values).tolist() == [1, 4, 5]
    assert shared.expanded(np.ones(3)).tolist() == [0, 1, 0, 0, 1, 1]


def test_sums_that_clients_take_themselves_share_everything():
    from dpfedbench.papers.adap_dp_fl import AdapDpFl

    class Shares(AdapDpFl):
        name: ClassVar[str] = "shares"
        shared: ClassVar[str] = "body"

    run = conftest.make_config(general=conftest.LOTS)
    with pytest.raises(BenchError, match="a client's sum over all"):
        Shares.read(run.plain() | {"method": "shares"})
