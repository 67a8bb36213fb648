"""Gradients of single records of networks of cells equal autograd's; no record's
gradient depends on another.
"""

import numpy as np
import pytest
import torch

from dpfedbench.models.choose import choose
from dpfedbench.models.zoo.darts import DartsCells, DartsSearch
from dpfedbench.training.mechanisms import make_accumulator
from dpsum.private_sum import PlainSum

SMALL = {"filters": 4, "cells": 3, "nodes": 2}
SKIPS = {
    "kind": "darts-cells",
    "affine": False,
    "genotype": {"kind": "same", "operation": "skip_connect"},
}
NETS = {
    "7x7 maps": DartsSearch(**SMALL, pooling=4),
    "14x14 maps": DartsSearch(**SMALL, pooling=2),
    "8x8 maps in colour, 3 nodes": DartsSearch(filters=4, cells=2, nodes=3, pooling=4),
    "normal cells alone": DartsSearch(**SMALL, pooling=4, reductions=()),
    "one group": DartsSearch(**SMALL, pooling=4, groups=1),
    "two groups": DartsSearch(**SMALL, pooling=4, groups=2),
    "random cells in one group": DartsCells(**SMALL, pooling=4, groups=1),
    "random cells": DartsCells(**SMALL, pooling=4),
    "skips": DartsCells.read(SKIPS | SMALL | {"pooling": 4}),
}


def make_records(name, dtype=np.float32):
    """Return a net, weights, five images and their labels."""
    shape = (32, 32, 3) if "colour" in name else (28, 28, 1)
    net = NETS[name].net(input_shape=shape, outputs=10)
    rng = np.random.default_rng(0)
    theta = net.initial(rng) + 0.1 * rng.standard_normal(net.dimension)
    images = rng.integers(0, 256, (5, *shape), np.uint8)
    return net, theta.astype(dtype), images, rng.integers(0, 10, 5)


def differentiate(net, theta, inputs, labels):
    """Return each record's loss [n] and gradient [n, d], by a pass of its own."""
    leaf = torch.from_numpy(theta.astype(np.float64)).requires_grad_()
    losses = []
    gradients = []
    for index in range(len(inputs)):
        record = slice(index, index + 1)
        loss = net.losses(leaf, inputs[record], labels[record]).sum()
        losses.append(loss.item())
        gradients.append(torch.autograd.grad(loss, leaf)[0].numpy())
    return np.array(losses), np.stack(gradients)


def relative_errors(rows, expected):
    """Return the distance of each row from the expected one, in its norm."""
    return np.linalg.norm(rows - expected, axis=1) / np.linalg.norm(expected, axis=1)


@pytest.mark.parametrize(
    ("name", "kernels", "dtype"),
    [
        *((name, True, "float64") for name in NETS),
        ("7x7 maps", False, "float64"),
        ("14x14 maps", True, "float32"),
        ("one group", True, "float32"),
    ],
)
def test_cells_rows_equal_autograd(name, kernels, dtype):
    """In single precision, maps of 7x7 with a group for each channel are left out: the
    last ones are 2x2, a pooled one is nearly constant, and normalisation enlarges
    rounding.
    """
    net, *records = make_records(name, dtype)
    gradients = choose(net, enabled=kernels, dtype=getattr(torch, dtype)).make()
    assert gradients.name == ("cells" if kernels else "torch")
    tolerance, loss_tolerance = (1e-10, 1e-12) if dtype == "float64" else (1e-5, 1e-6)
    losses, expected = differentiate(net, *records)
    for block, columns in {"": slice(0, net.dimension), **net.blocks}.items():
        rows = np.empty((5, gradients.width(block)), dtype)
        record_losses = gradients.record_gradients(*records, rows, block=block)
        assert relative_errors(rows, expected[:, columns]).max() < tolerance
        np.testing.assert_allclose(record_losses, losses, rtol=loss_tolerance)


@pytest.mark.parametrize(
    ("name", "block"),
    [
        *(("7x7 maps", block) for block in ("", "weights", "architecture")),
        ("random cells", ""),
        ("two groups", ""),
        ("random cells in one group", ""),
    ],
)
def test_cells_gradient_has_no_bit_of_another_record(name, block):
    """Another third image changes the third gradient and no other bit."""
    net, theta, images, labels = make_records(name)
    gradients = choose(net).make()
    before, after = np.empty((2, len(images), gradients.width(block)), np.float32)
    gradients.record_gradients(theta, images, labels, before, block=block)
    images[2] = 255 - images[2]
    gradients.record_gradients(theta, images, labels, after, block=block)
    assert (np.delete(before, 2, 0) == np.delete(after, 2, 0)).all()
    assert (before[2] != after[2]).any()


def test_cells_sum_of_a_block_depends_on_no_earlier_block():
    net, *records = make_records("7x7 maps")
    adding = choose(net).make()
    reference = choose(net).make()
    for block in ("architecture", "weights", "architecture"):
        width = adding.width(block)
        rows = np.empty((5, width), np.float32)
        total = make_accumulator(PlainSum(dimension=width))
        _, norms = adding.add_record_gradients(*records, total, block=block)
        reference.record_gradients(*records, rows, block=block)
        expected = np.linalg.norm(rows.astype(np.float64), axis=1)
        np.testing.assert_allclose(norms, expected, rtol=1e-6)
