"""Coordinates that clients share: selection, and the way back into the model."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpsum.group_clipping import CoordinateGroups

MASK = np.array([True, False, True, True, False])
HEAD = np.array([False, False, False, True, True])


@pytest.fixture
def shared():
    net = SimpleNamespace(dimension=5, mask=lambda *names: HEAD)
    return SharedCoordinates(net, MASK)


def test_shared_coordinates_are_selected_from_the_last_axis(shared):
    rows = torch.arange(10).reshape(2, 5)
    assert shared.count == 3
    assert shared.select(rows).tolist() == [[0, 2, 3], [5, 7, 8]]
    assert shared.head.tolist() == [False, False, True]
    with pytest.raises(BenchError, match="vectors of 4 coordinates, but the model"):
        shared.select(rows[:, :4])


def test_shared_coordinates_go_back_to_their_places(shared):
    """The others stay in the model, and are zero in a mean of messages."""
    values = np.array([10.0, 20.0, 30.0])
    model = np.full(5, -1.0)
    shared.put(model, values)
    assert model.tolist() == [10, -1, 20, 30, -1]
    assert shared.expanded(values).tolist() == [10, 0, 20, 30, 0]


def test_groups_of_shared_coordinates_leave_out_empty_ones(shared):
    """Groups of 1, 1 and 3 coordinates share 1, 0 and 2 of them."""
    groups = CoordinateGroups((0, 1, 2, 5), "joint", ("a", "b", "c"))
    kept = shared.groups(groups)
    assert kept.boundaries == (0, 1, 3)
    assert kept.names == ("a", "c")


@pytest.mark.parametrize("mask", [np.zeros(5, bool), np.ones(4, bool), np.ones(5)])
def test_mask_that_is_no_mask_of_the_model_is_refused(mask):
    with pytest.raises(BenchError):
        SharedCoordinates(SimpleNamespace(dimension=5), mask)
