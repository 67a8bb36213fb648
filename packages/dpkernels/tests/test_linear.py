"""The linear layer's clipped sum against torch's single gradients, clipped and added up
one by one.
"""

import math

import numpy as np
import pytest
from reference_networks import (
    add_clipped,
    differentiate,
    draw_parameters,
    leaf_of,
    logits,
)

from dpkernels import LinearShape, find_passes
from dpkernels.linear import LinearHeadGradients

SHAPE = (3, 3, 4)
WITH_BIAS = LinearShape(SHAPE, 5, bias=True)
both = pytest.mark.parametrize(
    "network", [WITH_BIAS, LinearShape(SHAPE, 5, bias=False)]
)


def make_records(network, count=30):
    """Return parameters, inputs and labels."""
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(network.dimension).astype(np.float32)
    inputs = rng.standard_normal((count, *SHAPE)).astype(np.float32)
    return theta, inputs, rng.integers(0, 5, count)


def add_records(network, theta, inputs, labels, limit):
    """Return losses, the clipped sum and the norms."""
    total = np.zeros(network.dimension)
    norms = np.empty(len(inputs))
    passes = LinearHeadGradients(network)
    assert passes.adds_records(inputs)
    losses = passes.add_record_gradients(theta, inputs, labels, limit, total, norms)
    return losses, total, norms


@both
@pytest.mark.parametrize("limit", [0.5, 3.0, math.inf])
def test_linear_head_adds_clipped_gradients(network, limit):
    """A record that is not finite counts as zero."""
    theta, inputs, labels = make_records(network)
    inputs[7] = math.nan
    losses, total, norms = add_records(network, theta, inputs, labels, limit)
    finite = np.delete(inputs, 7, 0), np.delete(labels, 7)
    expected_losses, rows = differentiate(network, theta, *finite)
    expected, expected_norms = add_clipped(rows, limit)
    np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.delete(norms, 7), expected_norms, rtol=1e-12)
    np.testing.assert_allclose(np.delete(losses, 7), expected_losses, atol=1e-12)
    assert not np.isfinite(norms[7])


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e15])
def test_linear_head_moves_the_sum_by_the_threshold_at_most(scale):
    theta, inputs, labels = make_records(WITH_BIAS, 1)
    inputs *= np.float32(scale)
    _, total, _ = add_records(WITH_BIAS, theta, inputs, labels, 0.3)
    assert np.linalg.norm(total) <= 0.3 * (1 + 1e-9)


@both
def test_linear_head_has_torchs_evaluation_and_sum(network):
    assert find_passes(network) is LinearHeadGradients
    theta, inputs, labels = make_records(network)
    passes = LinearHeadGradients(network)
    losses, rows = differentiate(network, theta, inputs, labels)
    measures = passes.evaluate(theta, inputs, labels)
    outputs = logits(network, leaf_of(theta), inputs).detach().numpy()
    np.testing.assert_allclose(measures.losses, losses, rtol=1e-12)
    assert np.array_equal(measures.right, outputs.argmax(axis=1) == labels)
    total = passes.sum_record_gradients(theta, inputs, labels)
    np.testing.assert_allclose(total, rows.sum(axis=0), atol=1e-12)


def test_linear_head_adds_an_empty_lot():
    theta = draw_parameters(WITH_BIAS).astype(np.float32)
    nothing = np.empty((0, *SHAPE), np.float32), np.empty(0, np.int64)
    losses, total, norms = add_records(WITH_BIAS, theta, *nothing, 1.0)
    assert not total.any()
    assert losses.shape == norms.shape == (0,)
