"""Lots that nobody is in: what is released is the noise, or who sees nothing of a
client knows that its lot was empty.

With one record expected of a hundred, or of fifty, that is so in 37 %.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedbench.evaluation.held_out import NoMeasures
from dpfedbench.federation.rounds import Rounds
from dpfedbench.models.gradients import Choice, Measured
from dpfedbench.parts.client_updates.summed_steps import Parties

from . import test_lots, test_search
from .conftest import Flat


def test_a_client_moves_by_its_noise_alone_where_nobody_is_in_its_lot():
    """Where each client goes, its server sees."""
    config = test_lots.make_config(
        {
            "method": "dp-fl",
            "participation": {"cohort": 1},
            "client_update": {"optimizer": "sgd"},
        }
    )
    held = SimpleNamespace(
        images=[np.arange(100, dtype=np.uint8)[:, None]] * 4,
        labels=[np.zeros(100, np.int64)] * 4,
    )
    found = Rounds(
        config,
        net=Flat(3),
        held=held,
        measures=NoMeasures(),
        ledger=[],
        gradients=Choice("given", lambda: test_lots.Lots(np.zeros((100, 3))), "cpu"),
    )
    empty = 0
    for index in range(5):
        before = found.theta.clone()
        found.round(index)
        empty += sum(
            not len(found.clients._lots.lot(index, 0, client)) for client in range(4)
        )
        assert ((found.clients._models - before).abs() > 1e-6).all()
    assert 0 < empty < 20


@pytest.mark.parametrize("make", [test_search.make_config, test_search.cells])
def test_a_party_releases_its_noise_alone_where_nobody_is_in_its_lot(monkeypatch, make):
    """What each party releases, in each phase."""
    sizes, left, own = [], [], Parties._party

    class Empty:
        """In place of gradients: all are zero."""

        device = "cpu"

        def add_each(self, theta, images, labels, total, *, block=""):
            sizes.append(len(images))
            nothing = np.zeros(len(images))
            return Measured(nothing, nothing, nothing), total.add(
                torch.zeros(len(images), total.dimension)
            )

    def spy(self, *given):
        found = own(self, *given)
        left.append(found[0].clone())
        return found

    monkeypatch.setattr(Parties, "_party", spy)
    config = make(
        *[None] * (make is test_search.cells), {"participation": {"cohort": 1}}
    )
    held = SimpleNamespace(
        images=[np.zeros((100, 1))] * 4, labels=[np.zeros(100, np.int64)] * 4
    )
    rounds = Rounds(
        config,
        net=Flat(3),
        held=held,
        measures=NoMeasures(),
        ledger=[],
        gradients=Choice("given", Empty, "cpu"),
    )
    for index in range(4):
        rounds.round(index)
    assert 0 in sizes and any(sizes) and len(left) == len(sizes)
    assert all(released.abs().min() > 0 for released in left)
