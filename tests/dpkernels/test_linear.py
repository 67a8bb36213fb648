"""The linear head's clipped sum against torch's single gradients, clipped and added up
one by one.
"""

import functools
import math

import numpy as np
import pytest
import torch

from dpfedbench.models.choose import choose
from dpfedbench.models.gradients import Gradients
from dpfedbench.models.linear import LinearHead
from dpfedbench.models.net import Net
from dpkernels.linear import LinearHeadGradients
from dpsum.private_sum import PlainSum
from tests.dpsum.helpers import NO_NOISE, make_sum

SHAPE = (3, 3, 4)
CLASSES = 5


def make_net(bias):
    head = functools.partial(LinearHead, inputs=SHAPE, classes=CLASSES, bias=bias)
    return Net(head, input_shape=SHAPE, outputs=CLASSES)


both_heads = pytest.mark.parametrize("net", [make_net(True), make_net(False)])


def make_records(net, count=30):
    """Return weights, inputs and labels."""
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(net.dimension).astype(np.float32)
    inputs = rng.standard_normal((count, *SHAPE)).astype(np.float32)
    return theta, inputs, rng.integers(0, CLASSES, count)


@both_heads
@pytest.mark.parametrize("threshold", [0.5, 3.0, math.inf])
def test_linear_head_adds_clipped_gradients(net, threshold):
    """A record that is not finite counts as zero."""
    theta, inputs, labels = make_records(net)
    inputs[7] = math.nan
    rows = torch.empty((len(inputs), net.dimension))
    expected_losses = Gradients(net).record_gradients(theta, inputs, labels, rows)
    norms = rows.double().norm(dim=1)
    clipped = torch.clamp(threshold / norms, max=1.0)[:, None] * rows.double()
    expected = clipped[norms.isfinite()].sum(dim=0)
    total = PlainSum(dimension=net.dimension)
    if math.isfinite(threshold):
        total = make_sum(net.dimension, threshold)
    gradients = LinearHeadGradients(net)
    losses, added_norms = gradients.add_record_gradients(theta, inputs, labels, total)
    np.testing.assert_allclose(added_norms, norms, rtol=1e-5)
    assert (total.count, total.non_finite) == (30, 1)
    released = total.release(NO_NOISE)
    np.testing.assert_allclose(released, expected, rtol=1e-5, atol=1e-5)
    finite = np.delete(losses, 7), np.delete(expected_losses, 7)
    np.testing.assert_allclose(*finite, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e15])
def test_linear_head_moves_the_sum_by_the_threshold_at_most(scale):
    net = make_net(True)
    theta, inputs, labels = make_records(net, 1)
    total = make_sum(net.dimension, 0.3)
    inputs *= np.float32(scale)
    LinearHeadGradients(net).add_record_gradients(theta, inputs, labels, total)
    assert np.linalg.norm(total.release(NO_NOISE)) <= 0.3 * (1 + 1e-9)


@both_heads
def test_linear_head_is_chosen_and_has_torchs_evaluation_and_sum(net):
    records = make_records(net)
    choice = choose(net)
    assert choice.name == "linear-head"
    gradients = choice.make()
    reference = Gradients(net)
    evaluations = gradients.evaluate(*records), reference.evaluate(*records)
    for values, exact in zip(*evaluations, strict=True):
        np.testing.assert_allclose(values, exact, rtol=1e-5)
    room = torch.empty((8, net.dimension))
    total = gradients.summed_record_gradients(*records, room)
    expected = reference.summed_record_gradients(*records, room)
    np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-5)
