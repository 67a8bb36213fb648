"""Gradients of single records of networks of cells: autograd's, one record after
another; no other record in them.
"""

import numpy as np
import pytest
import torch

from dpfedbench.models.choose import choose
from dpfedbench.models.zoo.darts import DartsCells, DartsSearch
from dpsum.private_sum import PlainSum

SMALL = {"filters": 4, "cells": 3, "nodes": 2}
NETS = {
    "7x7 maps": (DartsSearch(**SMALL, pooling=4), (28, 28, 1)),
    "14x14 maps": (DartsSearch(**SMALL, pooling=2), (28, 28, 1)),
    "8x8 maps in colour, 3 nodes": (
        DartsSearch(filters=4, cells=2, nodes=3, pooling=4),
        (32, 32, 3),
    ),
    "normal cells alone": (DartsSearch(**SMALL, pooling=4, reductions=()), (28, 28, 1)),
    "one group, as by default": (
        DartsSearch(**SMALL, pooling=4, groups=1),
        (28, 28, 1),
    ),
    "two groups of channels": (DartsSearch(**SMALL, pooling=4, groups=2), (28, 28, 1)),
    "random cells in one group": (
        DartsCells(**SMALL, pooling=4, groups=1),
        (28, 28, 1),
    ),
    "random cells": (DartsCells(**SMALL, pooling=4), (28, 28, 1)),
    "skips": (
        DartsCells.read(
            {
                "kind": "darts-cells",
                **SMALL,
                "pooling": 4,
                "affine": False,
                "genotype": {"kind": "same", "operation": "skip_connect"},
            }
        ),
        (28, 28, 1),
    ),
}


def drawn(name, records=5, dtype=np.float64):
    own, shape = NETS[name]
    net, rng = own.net(input_shape=shape, outputs=10), np.random.default_rng(0)
    theta = (net.initial(rng) + 0.1 * rng.standard_normal(net.dimension)).astype(dtype)
    return (
        net,
        theta,
        rng.integers(0, 256, (records, *shape), np.uint8),
        rng.integers(0, 10, records),
    )


def by_autograd(net, theta, x, y):
    """Each record's gradient in double precision, by a pass of its own."""
    leaf = torch.from_numpy(theta.astype(np.float64)).requires_grad_()
    losses = [net.losses(leaf, x[i : i + 1], y[i : i + 1]).sum() for i in range(len(x))]
    return np.stack([torch.autograd.grad(loss, leaf)[0].numpy() for loss in losses])


@pytest.mark.parametrize(
    ("name", "kernels"), [*((name, True) for name in NETS), ("7x7 maps", False)]
)
def test_rows_equal_autograds(name, kernels):
    net, theta, x, y = drawn(name)
    gradients = choose(net, enabled=kernels, dtype=torch.float64).make()
    assert gradients.name == ("cells" if kernels else "torch")
    wanted = by_autograd(net, theta, x, y)
    for block, place in {"": slice(0, net.dimension), **net.blocks}.items():
        rows = np.empty((len(x), gradients.width(block)))
        found = gradients.each(theta, x, y, rows, block=block)
        error = np.linalg.norm(rows - wanted[:, place], axis=1) / np.linalg.norm(
            wanted[:, place], axis=1
        )
        assert error.max() < 1e-10
        losses = net.losses(torch.from_numpy(theta), x, y)
        np.testing.assert_allclose(found.losses, losses.numpy(), rtol=1e-12)
        np.testing.assert_array_equal(
            found.right, net.correct(torch.from_numpy(theta), x, y)[0].numpy()
        )


@pytest.mark.parametrize("name", ["14x14 maps", "one group, as by default"])
def test_rows_in_single_precision(name):
    """With a group for each channel not at 7x7 maps: the last ones are 2x2, a pooled
    one is nearly constant there, and rounding is enlarged.
    """
    net, theta, x, y = drawn(name, dtype=np.float32)
    gradients, wanted = choose(net).make(), by_autograd(net, theta, x, y)
    for block, place in net.blocks.items():
        rows = np.empty((len(x), gradients.width(block)), np.float32)
        gradients.each(theta, x, y, rows, block=block)
        error = np.linalg.norm(rows - wanted[:, place], axis=1) / np.linalg.norm(
            wanted[:, place], axis=1
        )
        assert error.max() < 1e-5


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("7x7 maps", ""),
        ("7x7 maps", "weights"),
        ("7x7 maps", "architecture"),
        ("random cells", ""),
        ("two groups of channels", ""),
        ("random cells in one group", ""),
    ],
)
def test_another_record_changes_no_bit(name, block):
    net, theta, x, y = drawn(name, dtype=np.float32)
    gradients = choose(net).make()
    before, after = np.empty((2, len(x), gradients.width(block)), np.float32)
    gradients.each(theta, x, y, before, block=block)
    x[2] = 255 - x[2]
    gradients.each(theta, x, y, after, block=block)
    assert (np.delete(before, 2, 0) == np.delete(after, 2, 0)).all() and (
        before[2] != after[2]
    ).any()


def test_a_part_is_added_up_by_itself_and_what_came_before_leaves_nothing():
    net, theta, x, y = drawn("7x7 maps", dtype=np.float32)
    gradients, other = choose(net).make(), choose(net).make()
    for block in ("architecture", "weights", "architecture"):
        total, rows = (
            PlainSum(dimension=gradients.width(block)),
            np.empty((5, gradients.width(block)), np.float32),
        )
        _, norms = gradients.add_each(theta, x, y, total, block=block)
        other.each(theta, x, y, rows, block=block)
        np.testing.assert_allclose(
            norms, np.linalg.norm(rows.astype(np.float64), axis=1), rtol=1e-6
        )


def test_a_part_that_is_not_there_and_a_sum_of_another_size_are_refused():
    net, theta, x, y = drawn("7x7 maps", dtype=np.float32)
    gradients = choose(net).make()
    with pytest.raises(ValueError, match=r"blocks are \['architecture', 'weights'\]"):
        gradients.each(theta, x, y, np.empty((5, 1), np.float32), block="other")
    with pytest.raises(ValueError, match="sum of 80 coordinates"):
        gradients.add_each(
            theta, x, y, PlainSum(dimension=net.dimension), block="architecture"
        )


def test_an_empty_lot_has_no_rows():
    net, theta, x, y = drawn("7x7 maps", dtype=np.float32)
    gradients = choose(net).make()
    assert (
        len(
            gradients.each(
                theta, x[:0], y[:0], np.empty((0, net.dimension), np.float32)
            ).losses
        )
        == 0
    )
