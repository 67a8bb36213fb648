"""The path of a GPU: all tasks of a chunk at once, on the CPU and on a GPU."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.models import torch_gradients
from dpfedbench.models.choose import choose
from dpfedbench.models.meta_gradient import MetaGradient
from dpfedbench.models.patches import ConvolutionsAsProducts
from dpfedbench.models.torch_gradients import TorchGradients, _AllAtOnce

from .nets import conv4
from .test_gradients import RECORD
from .test_meta_gradient import draw_tasks, draw_theta

STEPS = 3
RATE = 0.3
NETS = {
    "plain": conv4(filters=4),
    "learnt rates": conv4(filters=4, rates=(STEPS, RATE)),
    "by record": conv4(filters=4, normalisation="record"),
}
DEVICES = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
)
FORMS = pytest.mark.parametrize("form", ["convolutions", "products"])


@pytest.fixture
def at_once(monkeypatch):
    """Let the torch path compute chunks at once on a CPU too."""

    def at(self, theta, x, y, out, products, into):
        labels = torch.as_tensor(y, device=self.device)
        return _AllAtOnce(self, self._theta(theta), x.value, labels, out)

    monkeypatch.setattr(TorchGradients, "_task_gradients", at)


def torch_gradients_of(net, device="cpu"):
    return TorchGradients(net, device=device, dtype=torch.float64)


def contributions(gradients, parts, order=2, weights=None):
    theta = draw_theta(gradients.net)
    shape = (len(parts[0]), gradients.net.dimension)
    out = torch.empty(shape, dtype=torch.float64, device=gradients.device)
    meta = MetaGradient(gradients, steps=STEPS, rate=RATE, order=order)
    losses, accuracies = meta.contribution(theta, *parts, out, weights)
    return out.cpu().numpy(), losses, accuracies


def assert_close(values, expected, tolerance=1e-12):
    error = tolerance * np.abs(expected).max(initial=0)
    np.testing.assert_allclose(values, expected, rtol=0, atol=error)


@DEVICES
@FORMS
@pytest.mark.parametrize(
    "weights", [None, np.array([0.2, 0.3, 0.5])], ids=["last loss", "multi-step loss"]
)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", NETS)
def test_meta_gradients_of_chunks_are_those_of_the_kernels(
    at_once, name, order, weights, form, device
):
    net = NETS[name]
    parts = draw_tasks(count=3)
    kernel = choose(net, dtype=torch.float64).make()
    assert kernel.name.startswith("conv4")
    expected = contributions(kernel, parts, order, weights)
    gradients = torch_gradients_of(net, device)
    gradients.as_products = form == "products"
    rows, losses, accuracies = contributions(gradients, parts, order, weights)
    for part in (slice(None, net.weights), slice(net.weights, None)):
        assert_close(rows[:, part], expected[0][:, part], 1e-10)
    np.testing.assert_allclose(losses, expected[1], rtol=1e-10)
    np.testing.assert_array_equal(accuracies, expected[2])


@DEVICES
@FORMS
@pytest.mark.parametrize("name", ["conv4 by record", "cnn"])
def test_gradients_of_records_are_those_of_autograd_on_each_device(name, form, device):
    net = RECORD[name]
    rng = np.random.default_rng(0)
    theta = net.initial(rng).astype(np.float64)
    x = rng.random((7, 28, 28, 1))
    y = np.arange(7) % 5
    gradients = torch_gradients_of(net, device)
    gradients.as_products = form == "products"
    rows = torch.empty((7, net.dimension), dtype=torch.float64, device=device)
    gradients.record_gradients(theta, x, y, rows)
    for i, row in enumerate(rows.cpu().numpy()):
        leaf = torch.from_numpy(theta).requires_grad_()
        record = torch.from_numpy(x[i : i + 1]), torch.from_numpy(y[i : i + 1])
        (expected,) = torch.autograd.grad(net.losses(leaf, *record).mean(), leaf)
        assert_close(row, expected.numpy(), 1e-10)


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


def test_chunk_that_is_too_large_is_halved_with_a_notice(at_once, limit_memory, capsys):
    """The path computes 7, then 3, then 1 at once, and tries no larger chunk again."""
    net = NETS["plain"]
    parts = draw_tasks(count=7)
    expected, *_ = contributions(torch_gradients_of(net), parts)
    device = limit_memory(2)
    gradients = torch_gradients_of(net)
    gradients._limit = 10**6
    rows, *_ = contributions(gradients, parts)
    assert_close(rows, expected)
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
    gradients = torch_gradients_of(net)
    expected = np.empty((9, net.dimension))
    losses = gradients.record_gradients(theta, x, y, expected).losses
    limit_memory(4)
    rows = np.empty_like(expected)
    np.testing.assert_allclose(
        gradients.record_gradients(theta, x, y, rows).losses, losses
    )
    assert_close(rows, expected)
    assert capsys.readouterr().err.count("out of memory") == 1
