"""Conv-4 by hand-written passes against torch's automatic differentiation."""

import sys

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.models.choose import choose
from dpfedbench.models.gradients import Workers
from dpfedbench.models.meta_gradient import MetaGradient
from dpkernels.conv4_passes import Passes
from tests.dpfedbench.models.nets import conv4


def derivatives(net, theta, x, y, v):
    weights = torch.tensor(theta, requires_grad=True)
    loss = functional.cross_entropy(
        net.logits(weights, torch.tensor(x)), torch.tensor(y)
    )
    (gradient,) = torch.autograd.grad(loss, weights, create_graph=True)
    (product,) = torch.autograd.grad(gradient @ torch.tensor(v), weights)
    return loss.item(), gradient.detach().numpy(), product.numpy()


@pytest.mark.parametrize(
    ("shape", "filters", "batch"),
    [
        ((28, 28, 1), 7, 5), ((32, 32, 3), 6, 4), ((84, 84, 3), 3, 3), ((16, 20, 2), 4, 6),
        # The colour data sets with the filters that the papers take for them.
        ((32, 32, 3), 48, 5), ((64, 64, 3), 48, 2), ((84, 84, 3), 48, 2),
    ],
)  # fmt: skip
def test_passes_equal_automatic_differentiation(shape, filters, batch):
    rng = np.random.default_rng(1)
    net = conv4(image_shape=shape, filters=filters)
    theta = net.initial(rng).astype(np.float64) + 0.05 * rng.normal(size=net.dimension)
    x, y = (
        rng.random((batch, *shape)) * (rng.random((batch, *shape)) > 0.5),
        np.arange(batch) % 5,
    )
    v, gradient, product = (
        rng.normal(size=net.dimension),
        np.empty(net.dimension),
        np.empty(net.dimension),
    )
    passes = Passes(net.module, batch, np.float64)
    images, at = passes.images(x[None]), passes.points(1)
    losses, _ = passes.gradients(theta[None], images, y[None], at, gradient[None])
    passes.hessian_products(theta[None], images, v[None], at, product[None])
    expected = derivatives(net, theta, x, y, v)
    assert losses.mean() == pytest.approx(expected[0], rel=1e-12)
    np.testing.assert_allclose(
        gradient, expected[1], atol=1e-11 * np.abs(expected[1]).max()
    )
    np.testing.assert_allclose(
        product, expected[2], atol=1e-11 * np.abs(expected[2]).max()
    )


def tasks(net, count, seed=0):
    rng = np.random.default_rng(seed)
    theta = (net.initial(rng) + 0.05 * rng.standard_normal(net.dimension)).astype(
        np.float32
    )
    x = rng.random((2, count, 5, *net.input_shape), dtype=np.float32)
    y = np.tile(np.arange(5), (count, 1))
    return theta, x[0], y, x[1], y


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("weights", [None, np.array([0.2, 0.3, 0.5])])
def test_tasks_computed_together_have_the_bits_of_tasks_alone(order, weights):
    net = conv4(filters=16)
    theta, *parts = tasks(net, 7)
    meta = MetaGradient(choose(net).make(), steps=3, rate=0.1, order=order)
    together, alone = np.empty((2, 7, net.dimension), np.float32)
    measured = np.array(meta.contribution(theta, *parts, together, weights))
    for t in range(7):
        one = meta.contribution(
            theta, *(part[t : t + 1] for part in parts), alone[t : t + 1], weights
        )
        assert (measured[:, t] == np.array(one)[:, 0]).all()
    assert together.tobytes() == alone.tobytes()


def test_nan_is_noticed():
    net = conv4(filters=16)
    theta, *parts = tasks(net, 2)
    theta[net.dimension // 2] = np.nan
    out = np.zeros((2, net.dimension), np.float32)
    losses, _ = MetaGradient(choose(net).make(), steps=1, rate=0.1).contribution(
        theta, *parts, out
    )
    assert np.isnan(losses).all() and np.isnan(out).any(axis=1).all()


def test_python_makes_few_calls_for_a_task():
    """Each holds the lock that threads wait for; where Python ordered the passes, a
    task took over a thousand.
    """
    net = conv4(filters=16)
    choice = choose(net)
    size = Workers(choice, lambda gradients: gradients).split(100)[0].stop
    theta, *parts = tasks(net, size)
    out, calls = np.empty((size, net.dimension), np.float32), []
    meta = MetaGradient(choice.make(), steps=2, rate=0.1)
    meta.contribution(theta, *parts, out)
    sys.setprofile(
        lambda frame, event, what: (
            calls.append(what) if event in ("call", "c_call") else None
        )
    )
    try:
        meta.contribution(theta, *parts, out)
    finally:
        sys.setprofile(None)
    assert len(calls) / size < 150
