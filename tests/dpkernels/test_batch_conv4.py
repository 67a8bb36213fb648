"""Conv-4 by hand-written passes against torch's automatic differentiation."""

import numpy as np
import pytest

from dpfedbench.models.choose import choose
from dpfedbench.models.meta_gradient import MetaGradient
from dpkernels.conv4_passes import Conv4Passes
from tests.dpfedbench.models.nets import conv4
from tests.dpkernels.autograd import differentiate_twice


def perturbed_weights(net, rng):
    return net.initial(rng) + 0.05 * rng.standard_normal(net.dimension)


@pytest.mark.parametrize(
    ("shape", "filters", "batch"),
    [
        ((28, 28, 1), 7, 5),
        ((32, 32, 3), 6, 4),
        ((84, 84, 3), 3, 3),
        ((16, 20, 2), 4, 6),
        # The colour data sets with the filters of the papers.
        ((32, 32, 3), 48, 5),
        ((64, 64, 3), 48, 2),
    ],
)
def test_conv4_passes_equal_automatic_differentiation(shape, filters, batch):
    rng = np.random.default_rng(1)
    net = conv4(image_shape=shape, filters=filters)
    theta = perturbed_weights(net, rng)
    images = rng.random((batch, *shape)) * (rng.random((batch, *shape)) > 0.5)
    labels = np.arange(batch) % 5
    direction = rng.normal(size=net.dimension)
    gradient, product = np.empty((2, net.dimension))
    passes = Conv4Passes(net.module, batch, np.float64)
    prepared = passes.images(images[None])
    points = passes.points(1)
    arguments = theta[None], prepared
    losses, _ = passes.gradients(*arguments, labels[None], points, gradient[None])
    passes.hessian_products(*arguments, direction[None], points, product[None])
    expected = differentiate_twice(net, theta, images, labels, direction)
    assert losses.mean() == pytest.approx(expected[0], rel=1e-12)
    for values, exact in ((gradient, expected[1]), (product, expected[2])):
        np.testing.assert_allclose(values, exact, atol=1e-11 * np.abs(exact).max())


def make_tasks(net, count):
    """Return weights, and support and query images and labels of tasks."""
    rng = np.random.default_rng(0)
    theta = perturbed_weights(net, rng).astype(np.float32)
    images = rng.random((2, count, 5, *net.input_shape), dtype=np.float32)
    labels = np.tile(np.arange(5), (count, 1))
    return theta, (images[0], labels, images[1], labels)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("weights", [None, np.array([0.2, 0.3, 0.5])])
def test_conv4_tasks_together_have_the_bits_of_tasks_alone(order, weights):
    net = conv4(filters=16)
    theta, tasks = make_tasks(net, 7)
    meta = MetaGradient(choose(net).make(), steps=3, rate=0.1, order=order)
    together, alone = np.empty((2, 7, net.dimension), np.float32)
    losses = meta.contribution(theta, *tasks, together, weights)
    for index in range(7):
        task = (array[index : index + 1] for array in tasks)
        row = alone[index : index + 1]
        assert losses[index] == meta.contribution(theta, *task, row, weights)
    assert together.tobytes() == alone.tobytes()


def test_conv4_shows_weights_that_are_not_finite():
    net = conv4(filters=16)
    theta, tasks = make_tasks(net, 2)
    theta[net.dimension // 2] = np.nan
    out = np.zeros((2, net.dimension), np.float32)
    meta = MetaGradient(choose(net).make(), steps=1, rate=0.1)
    losses = meta.contribution(theta, *tasks, out)
    assert np.isnan(losses).all()
    assert np.isnan(out).any(axis=1).all()
