"""Conv-4 by hand-written passes against torch's automatic differentiation."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.conv4_passes import Images
from dpfedbench.models.fused_conv4 import FusedConv4


def derivatives(net, theta, x, y, v):
    weights = torch.tensor(theta, requires_grad=True)
    loss = functional.cross_entropy(net.forward(weights, torch.tensor(x)), torch.tensor(y))
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
    net = Conv4(image_shape=shape, filters=filters, ways=5)
    theta = net.initial(rng).astype(np.float64) + 0.05 * rng.normal(size=net.dimension)
    x, y = rng.random((batch, *shape)) * (rng.random((batch, *shape)) > 0.5), np.arange(batch) % 5
    v, gradient, product = rng.normal(size=net.dimension), np.empty(net.dimension), np.empty(net.dimension)
    fused, images = FusedConv4(net, batch, np.float64), Images(x)
    at = fused.evaluation()
    loss, _ = fused.loss(theta, images, y, at)
    fused.gradient(images, at, gradient)
    fused.hessian_product(v, images, at, product)
    expected = derivatives(net, theta, x, y, v)
    assert loss == pytest.approx(expected[0], rel=1e-12)
    np.testing.assert_allclose(gradient, expected[1], atol=1e-11 * np.abs(expected[1]).max())
    np.testing.assert_allclose(product, expected[2], atol=1e-11 * np.abs(expected[2]).max())


def test_named_tensors_round_trip_and_refuse_another_net():
    net = Conv4(image_shape=(28, 28, 1), filters=4, ways=5)
    theta = net.initial(np.random.default_rng(0))
    tensors = net.tensors(torch.from_numpy(theta))
    assert np.array_equal(net.flatten(tensors), theta)
    assert sum(t.numel() for t in tensors.values()) == net.dimension == len(theta)
    with pytest.raises(BenchError, match="do not fit"):
        Conv4(image_shape=(28, 28, 1), filters=5, ways=5).flatten(tensors)


@pytest.mark.parametrize("change", [{"image_shape": (27, 28, 1)}, {"filters": 0}, {"ways": 1}])
def test_impossible_shapes_are_refused(change):
    with pytest.raises(BenchError):
        Conv4(**({"image_shape": (28, 28, 1), "filters": 4, "ways": 5} | change))
