"""Conv-4 gradients of single records against torch's differentiation."""

import numpy as np
import pytest
from reference_networks import (
    differentiate,
    differentiate_twice,
    draw_parameters,
    leaf_of,
    logits,
    relative_errors,
)

from dpkernels import Conv4Shape, find_passes
from dpkernels.record_conv4 import RecordConv4

NETWORK = Conv4Shape((28, 28, 1), 6, 5, "record")


def make_records(count=23, dtype=np.float32):
    """Return parameters, images and labels: two full passes and a part of one."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 28, 28, 1), np.uint8)
    theta = draw_parameters(NETWORK).astype(dtype)
    return theta, images, rng.integers(0, 5, count)


def gradients_of(theta, images, labels):
    rows = np.empty((len(images), NETWORK.dimension), theta.dtype)
    passes = RecordConv4(NETWORK, theta.dtype)
    return passes.record_gradients(theta, images, labels, rows), rows


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float64, 1e-11), (np.float32, 1e-4)]
)
def test_record_conv4_gradients_equal_autograd(dtype, tolerance):
    assert find_passes(NETWORK, dtype) is RecordConv4
    records = make_records(dtype=dtype)
    losses, rows = gradients_of(*records)
    expected_losses, expected = differentiate(NETWORK, *records)
    assert relative_errors(rows, expected).max() < tolerance
    np.testing.assert_allclose(losses, expected_losses, rtol=tolerance)


def test_record_conv4_gradient_has_no_bit_of_another_record():
    theta, images, labels = make_records()
    _, before = gradients_of(theta, images, labels)
    images[2] = 255 - images[2]
    _, after = gradients_of(theta, images, labels)
    assert (np.delete(before, 2, 0) == np.delete(after, 2, 0)).all()
    assert (before[2] != after[2]).any()


def test_record_conv4_evaluation_and_logits_equal_torchs():
    theta, images, labels = make_records(dtype=np.float64)
    passes = RecordConv4(NETWORK, np.float64)
    measures = passes.evaluate(theta, images, labels)
    expected = logits(NETWORK, leaf_of(theta), images).detach().numpy()
    outputs = passes.logits(theta[None], passes.prepare(images[None]))
    np.testing.assert_allclose(outputs[0], expected, atol=1e-11)
    losses, _ = differentiate(NETWORK, theta, images, labels)
    np.testing.assert_allclose(measures.losses, losses, rtol=1e-11)
    assert np.array_equal(measures.right, expected.argmax(axis=1) == labels)
    assert np.array_equal(measures.answers, np.ones(23))


def test_record_conv4_task_is_the_mean_of_its_records():
    """A task of one record also has Hessian products."""
    theta, images, labels = make_records(dtype=np.float64)
    passes = RecordConv4(NETWORK, np.float64)
    out = np.empty((1, len(theta)))
    prepared = passes.prepare(images[None])
    tasks = passes.task_gradients(theta[None], prepared, labels[None], out)
    losses, expected = differentiate(NETWORK, theta, images, labels)
    np.testing.assert_allclose(out[0], expected.mean(axis=0), atol=1e-11)
    np.testing.assert_allclose(tasks.losses, [losses.mean()], rtol=1e-11)
    assert not tasks.has_products
    direction = np.random.default_rng(1).normal(size=len(theta))
    product = np.empty_like(out)
    single = passes.prepare(images[None, :1])
    tasks = passes.task_gradients(
        theta[None], single, labels[None, :1], out, products=True
    )
    assert tasks.has_products
    tasks.product(direction[None], product)
    _, gradient, exact = differentiate_twice(
        NETWORK, theta, images[:1], labels[:1], direction
    )
    np.testing.assert_allclose(out[0], gradient, atol=1e-11 * abs(gradient).max())
    np.testing.assert_allclose(product[0], exact, atol=1e-10 * abs(exact).max())
