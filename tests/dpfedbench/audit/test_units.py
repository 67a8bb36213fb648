"""Coordinates of canaries, and the units that an audit makes."""

import numpy as np
import pytest

from dpfedbench.audit.units import EMPTY, LARGE, Coordinates, canary_units


def test_contribution_in_all_groups_keeps_its_norm_and_has_its_canary_in_each():
    """Two ordinary and three reserved coordinates, in four groups."""
    net = Coordinates(ordinary=2, reserved=3, groups=4)
    rows = np.zeros((2, 5), np.float32)
    rows[0, :2] = 3.0, 4.0
    rows[1, 3] = LARGE
    spread = net.spread(rows).reshape(2, 4, 5 + EMPTY)
    assert spread.shape[1:] == (4, net.dimension // 4)
    assert np.linalg.norm(spread[0]) == pytest.approx(5.0)
    assert np.linalg.norm(spread[0], axis=1) == pytest.approx([2.5] * 4)
    assert (spread[1, :, 3] == np.float32(LARGE)).all()
    assert np.count_nonzero(spread[1]) == 4


def test_canaries_have_a_coordinate_each_and_no_gradient():
    """Of ten units the first three places are canaries; the second was left out."""
    places = np.array([7, 0, 4, 9, 1, 2, 3, 5, 6, 8])
    units = canary_units(
        10,
        np.array([True, False, True]),
        norm=2.0,
        seed=0,
        holder=0,
        places=places,
    )
    assert units.coordinates[[7, 0, 4]].tolist() == [0, 1, 2]
    assert units.size[[7, 0, 4]] == pytest.approx([LARGE, 0.0, LARGE])
    assert not units.gradients[[7, 0, 4]].any()
    ordinary = np.setdiff1d(np.arange(10), [7, 0, 4])
    assert (units.coordinates[ordinary] == -1).all()
    assert units.gradients[ordinary].any(axis=1).all()
    width = units.gradients.shape[1]
    out = np.zeros((2, width + 3), np.float32)
    units.fill(np.array([4, 1]), out)
    assert out[0].nonzero()[0].tolist() == [width + 2]
    assert np.array_equal(out[1, :width], units.gradients[1])
    assert not out[1, width:].any()
