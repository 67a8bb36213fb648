"""Methods whose clients share some coordinates of the model."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from dpfedbench.audit import units
from dpfedbench.audit.report import audit
from dpfedbench.errors import BenchError
from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpfedbench.papers import METHODS
from dpfedbench.papers.adap_dp_fl import AdapDpFl
from dpfedbench.papers.federated_averaging import DpFedAvg
from dpsum.group_clipping import CoordinateGroups

from . import conftest
from .conftest import DIFFERENCE, FlatNet, fixed_rounds, proven, rounds_of, train


class BodyFedAvg(DpFedAvg):
    name: ClassVar[str] = "body-fed-avg"
    shared: ClassVar[str] = "body"


class OddFedAvg(DpFedAvg):
    name: ClassVar[str] = "odd-fed-avg"

    def shared_mask(self, net):
        return np.arange(net.dimension) % 2 == 1


def config_of(method, *overlays):
    known = next(cls.name for cls in method.__mro__ if cls.name in METHODS)
    run = conftest.make_config({"method": known}, *overlays, general=DIFFERENCE)
    return method.read(run.plain() | {"method": method.name})


@pytest.mark.parametrize(
    ("method", "clipping"),
    [
        (BodyFedAvg, {}),
        (BodyFedAvg, {"groups": "layers", "noise_by_group": "joint"}),
    ],
)
def test_shared_body_has_noise_and_the_head_has_none(silos, tmp_path, method, clipping):
    check_shared_body(silos, tmp_path, method, clipping)


def check_shared_body(silos, tmp_path, method, clipping):
    """Check a method that shares the body; return its rounds after they were taken."""
    run = config_of(method, {"clipping": clipping})
    train(run, silos, tmp_path / "run")
    rounds = rounds_of(run, silos, tmp_path / "rounds")
    initial = rounds.theta.clone()
    for index in range(run.participation.rounds):
        rounds.round(index)
    moved = (rounds.theta != initial).numpy()
    head = rounds.net.mask("head")
    assert not moved[head].any()
    assert moved[~head].mean() > 0.99
    shared = int((~head).sum())
    lines = conftest.ledger_in(tmp_path / "run")
    assert {line.dimension for line in lines} == {shared}
    assert conftest.training_in(tmp_path / "run")["shared_parameters"] == shared
    whole = config_of(method.__base__, {"clipping": clipping})
    train(whole, silos, tmp_path / "whole")
    assert proven(run, tmp_path / "run") == proven(whole, tmp_path / "whole")
    return rounds


def check_shared_coordinates_alone_are_clipped():
    """Check that shared coordinates 3 and 4 are clipped to 0.3 and 0.4, C = 0.5."""
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


def test_shared_coordinates_alone_are_clipped(monkeypatch):
    """The planted fault: clipping before the shared coordinates are taken."""
    check_shared_coordinates_alone_are_clipped()
    select = SharedCoordinates.select

    def clipped_as_a_whole(self, vectors):
        if vectors.ndim == 2:
            vectors = torch.renorm(vectors, p=2, dim=0, maxnorm=0.5)
        return select(self, vectors)

    monkeypatch.setattr(SharedCoordinates, "select", clipped_as_a_whole)
    with pytest.raises(AssertionError):
        check_shared_coordinates_alone_are_clipped()
    assert audit_of_body()["another_mechanism"]


def audit_of_body(**overlay):
    """Audit a run of 400 clients that share three of four coordinates."""
    audited = {
        "clients": {"count": 400, "fragments": 400},
        "participation": {"kind": "one-pass", "cohort": 40, "rounds": 10},
    }
    run = config_of(BodyFedAvg, audited | overlay)
    shared = SharedCoordinates(FlatNet(4), np.array([True, True, True, False]))
    rounds = fixed_rounds(run, np.zeros((400, 4)), shared=shared)
    for index in range(10):
        rounds.round(index)
    return audit(run, rounds.ledger, canaries=400)


@pytest.mark.parametrize(
    "overlay", [{}, {"clipping": {"groups": "tensors", "noise_by_group": "joint"}}]
)
def test_audit_has_its_canaries_in_shared_coordinates(overlay, monkeypatch):
    groups = CoordinateGroups((0, 1, 3, 4), "joint")
    monkeypatch.setattr(FlatNet, "coordinate_groups", lambda *_: groups, raising=False)
    report = audit_of_body(**overlay)
    assert 0 < report["epsilon"] <= report["epsilon_proven"]
    assert not report["another_mechanism"]


def test_canary_in_the_head_is_noticed(monkeypatch):
    """The planted fault: canaries are in coordinates that no client sends."""
    spread = units.Coordinates.spread

    def into_the_head(self, rows):
        rows = rows.copy()
        rows[:, self.ordinary :] = 0
        return spread(self, rows)

    monkeypatch.setattr(units.Coordinates, "spread", into_the_head)
    report = audit_of_body()
    assert report["epsilon"] == 0
    assert report["another_mechanism"]


def test_groups_are_cut_to_the_shared_coordinates():
    mask = np.array([False, True, False, False, True, True])
    shared = SharedCoordinates(FlatNet(6), mask)
    groups = shared.groups(CoordinateGroups((0, 2, 4, 6), names=("a", "b", "c")))
    assert (groups.boundaries, groups.names) == ((0, 1, 3), ("a", "c"))
    assert shared.select(np.arange(6.0)).tolist() == [1, 4, 5]
    assert shared.expanded(np.ones(3)).tolist() == [0, 1, 0, 0, 1, 1]


def test_sums_that_clients_take_themselves_share_everything():
    class Shares(AdapDpFl):
        name: ClassVar[str] = "shares"
        shared: ClassVar[str] = "body"

    run = conftest.make_config(general=conftest.LOTS)
    with pytest.raises(BenchError, match="a client's sum over all"):
        Shares.read(run.plain() | {"method": "shares"})
