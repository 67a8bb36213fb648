"""Conv-4 by hand-written passes against torch's automatic differentiation."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.kernels.batch_conv4 import FusedConv4
from dpfedbench.kernels.conv4_passes import Images
from tests.models.nets import conv4


def derivatives(net, theta, x, y, v):
    weights = torch.tensor(theta, requires_grad=True)
    loss = functional.cross_entropy(net.logits(weights, torch.tensor(x)), torch.tensor(y))
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
    x, y = rng.random((batch, *shape)) * (rng.random((batch, *shape)) > 0.5), np.arange(batch) % 5
    v, gradient, product = rng.normal(size=net.dimension), np.empty(net.dimension), np.empty(net.dimension)
    fused, images = FusedConv4(net.module, batch, np.float64), Images(x)
    at = fused.evaluation()
    loss, _ = fused.loss(theta, images, y, at)
    fused.gradient(images, at, gradient)
    fused.hessian_product(v, images, at, product)
    expected = derivatives(net, theta, x, y, v)
    assert loss == pytest.approx(expected[0], rel=1e-12)
    np.testing.assert_allclose(gradient, expected[1], atol=1e-11 * np.abs(expected[1]).max())
    np.testing.assert_allclose(product, expected[2], atol=1e-11 * np.abs(expected[2]).max())
