"""The path of a GPU on a CPU: convolutions as products, and chunks that are too large."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.models import torch_gradients
from dpfedbench.models.patches import ConvolutionsAsProducts

from .nets import conv4, gradients_by
from .test_gradients import RECORD
from .test_meta_gradient import contributions, draw_tasks, draw_theta


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": 1},
        {"padding": (2, 0), "stride": 2},
        {"stride": (1, 3), "dilation": 2},
        {"padding": "same"},
    ],
    ids=str,
)
def test_convolution_as_a_product_is_the_convolution(options):
    """Values and derivatives, for sides that are no multiple of the stride."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((3, 2, 11, 16), (4, 2, 3, 5), (4,))
    )

    def results():
        value = functional.conv2d(x, weight, bias, **options)
        return value, *torch.autograd.grad(value.sin().sum(), (x, weight, bias))

    expected = results()
    with ConvolutionsAsProducts():
        products = results()
    torch.testing.assert_close(products, expected, rtol=1e-12, atol=1e-12)


class SmallDevice:
    """Stand-in for torch's vmap on a device with room for `limit` tasks or records."""

    def __init__(self, limit):
        self.limit = limit
        self.counts = []
        self.vmap = torch.func.vmap

    def __call__(self, function, *sizes):
        inner = self.vmap(function, *sizes)

        def call(*arguments):
            tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
            count = max(map(len, tensors))
            self.counts.append(count)
            if count > self.limit:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return inner(*arguments)

        return call


@pytest.fixture
def limit_memory(monkeypatch):
    def limit(count):
        device = SmallDevice(count)
        monkeypatch.setattr(torch.func, "vmap", device)
        torch_gradients._say_once.cache_clear()
        return device

    return limit


def test_chunk_that_is_too_large_is_halved_with_a_notice(limit_memory, capsys):
    """The path computes 7, then 3, then 1 at once, and tries no larger chunk again."""
    net = conv4(filters=4)
    theta = draw_theta(net)
    parts = draw_tasks(count=7)
    expected = contributions(gradients_by("at once", net), theta, parts)
    device = limit_memory(2)
    gradients = gradients_by("at once", net)
    gradients._limit = 10**6
    rows = contributions(gradients, theta, parts)
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-12)
    assert device.counts[:3] == [7, 3, 1]
    assert set(device.counts[2:]) == {1}
    assert capsys.readouterr().err.splitlines() == [
        "notice: cpu is out of memory: 3 at once instead of 7 from here on",
        "notice: cpu is out of memory: 1 at once instead of 3 from here on",
    ]


def test_records_that_are_too_many_are_halved(limit_memory, capsys):
    net = RECORD["conv4 by record"]
    rng = np.random.default_rng(0)
    theta = net.initial(rng).astype(np.float64)
    x = rng.random((9, 28, 28, 1))
    y = np.arange(9) % 5
    gradients = gradients_by("at once", net)
    expected = np.empty((9, net.dimension))
    losses = gradients.record_gradients(theta, x, y, expected).losses
    limit_memory(4)
    rows = np.empty_like(expected)
    halved = gradients.record_gradients(theta, x, y, rows)
    np.testing.assert_allclose(halved.losses, losses)
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-12)
    assert capsys.readouterr().err.count("out of memory") == 1
