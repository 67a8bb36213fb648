"""The path that a GPU takes, on the CPU: all tasks of a chunk at once. And on a GPU,
where there is one.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.models import torch_gradients
from dpfedbench.models.choose import choose
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.meta_gradient import MetaGradient
from dpfedbench.models.net import Net
from dpfedbench.models.patches import ConvolutionsAsProducts
from dpfedbench.models.torch_gradients import TorchGradients, _AllAtOnce

from .test_gradients import RECORD
from .test_meta_gradient import drawn, tasks

STEPS, RATE = 3, 0.3


def conv4(normalisation="batch"):
    def build():
        return Conv4(
            image_shape=(28, 28, 1), filters=4, ways=5, normalisation=normalisation
        )

    return Net(build, input_shape=(28, 28, 1), outputs=5)


NETS = {
    "plain": conv4(),
    "learnt rates": conv4().with_rates(STEPS, RATE),
    "by record": conv4("record"),
}
DEVICES = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
)


@pytest.fixture
def at_once(monkeypatch):
    """From now on the torch path computes chunks on a CPU too."""

    def at(self, theta, x, y, out, products, into):
        labels = torch.as_tensor(y, device=self.device)
        return _AllAtOnce(self, self._theta(theta), x.value, labels, out)

    monkeypatch.setattr(TorchGradients, "_at", at)


def contributions(gradients, theta, parts, order, weights):
    out = torch.empty(
        (len(parts[0]), gradients.net.dimension),
        dtype=torch.float64,
        device=gradients.device,
    )
    meta = MetaGradient(gradients, steps=STEPS, rate=RATE, order=order)
    losses, accuracies = meta.contribution(theta, *parts, out, weights)
    return out.cpu().numpy(), losses, accuracies


@DEVICES
@pytest.mark.parametrize("form", ["convolutions", "products"])
@pytest.mark.parametrize(
    "weights", [None, np.array([0.2, 0.3, 0.5])], ids=["last loss", "multi-step loss"]
)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", NETS)
def test_meta_gradients_of_chunks_are_those_of_the_kernels(
    at_once, name, order, weights, form, device
):
    net, parts = NETS[name], tasks(count=3)
    theta = drawn(net)
    kernel = choose(net, dtype=torch.float64).make()
    assert kernel.name.startswith("conv4")
    wanted = contributions(kernel, theta, parts, order, weights)
    chunks = TorchGradients(net, device=device, dtype=torch.float64)
    chunks.as_products = form == "products"
    found = contributions(chunks, theta, parts, order, weights)
    for part in (slice(None, net.weights), slice(net.weights, None)):
        scale = np.abs(wanted[0][:, part]).max(initial=0)
        np.testing.assert_allclose(
            found[0][:, part], wanted[0][:, part], rtol=0, atol=1e-10 * scale
        )
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-10)
    np.testing.assert_array_equal(found[2], wanted[2])


@DEVICES
@pytest.mark.parametrize("form", ["convolutions", "products"])
@pytest.mark.parametrize("name", ["conv4 by record", "cnn"])
def test_gradients_of_records_are_those_of_autograd_on_each_device(name, form, device):
    net = RECORD[name]
    rng = np.random.default_rng(0)
    theta = net.initial(rng).astype(np.float64)
    x, y = rng.random((7, 28, 28, 1)), np.arange(7) % 5
    gradients, out = (
        TorchGradients(net, device=device, dtype=torch.float64),
        torch.empty(7, net.dimension).double(),
    )
    rows = out.to(device)
    gradients.as_products = form == "products"
    gradients.each(theta, x, y, rows)
    for i in range(7):
        leaf = torch.from_numpy(theta).requires_grad_()
        loss = net.losses(
            leaf, torch.from_numpy(x[i : i + 1]), torch.from_numpy(y[i : i + 1])
        ).mean()
        (wanted,) = torch.autograd.grad(loss, leaf)
        torch.testing.assert_close(
            rows[i].cpu(), wanted, rtol=0, atol=1e-10 * float(wanted.abs().max())
        )


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"padding": 1},
        {"padding": (2, 0), "stride": 2},
        {"stride": (1, 3), "dilation": 2},
        {"padding": "same"},
    ],
    ids=str,
)
def test_a_convolution_as_a_product_is_the_convolution(how):
    """Values and derivatives, of every stride, padding and distance of taps; sides that
    do not divide evenly.
    """
    drawn = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(*shape, generator=drawn, dtype=torch.float64, requires_grad=True)
        for shape in ((3, 2, 11, 16), (4, 2, 3, 5), (4,))
    )

    def outcome():
        value = functional.conv2d(x, weight, bias, **how)
        return value, *torch.autograd.grad(value.sin().sum(), (x, weight, bias))

    wanted = outcome()
    with ConvolutionsAsProducts():
        found = outcome()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@DEVICES
def test_a_gpu_gets_products_and_a_cpu_convolutions(device):
    assert TorchGradients(NETS["plain"], device=device).as_products == (
        device == "cuda"
    )


@DEVICES
@pytest.mark.parametrize("name", NETS)
def test_a_device_is_found_to_take_several_tasks_at_once(name, device):
    """Before anything else was computed: torch's `vmap` allows no module to be moved,
    and that looked like a no.
    """
    assert TorchGradients(NETS[name], device=device, dtype=torch.float64)._vmaps_tasks


class Small:
    """A stand-in for a device with room for so many tasks or records at once: torch's
    vmap, which raises beyond.
    """

    def __init__(self, most):
        self.most, self.seen, self._vmap = most, [], torch.func.vmap

    def __call__(self, function, *sizes):
        inner = self._vmap(function, *sizes)

        def call(*arguments):
            count = max(len(one) for one in arguments if isinstance(one, torch.Tensor))
            self.seen.append(count)
            if count > self.most:
                raise torch.OutOfMemoryError(
                    "CUDA out of memory. Tried to allocate 9.00 GiB."
                )
            return inner(*arguments)

        return call


@pytest.fixture
def small(monkeypatch):
    def make(most):
        found = Small(most)
        monkeypatch.setattr(torch.func, "vmap", found)
        torch_gradients._say_once.cache_clear()
        return found

    return make


def test_a_chunk_that_is_too_large_is_halved_and_said_once(at_once, small, capsys):
    net, parts = NETS["plain"], tasks(count=7)
    theta = drawn(net)
    wanted, *_ = contributions(
        TorchGradients(net, dtype=torch.float64), theta, parts, 2, None
    )
    device = small(2)
    gradients = TorchGradients(net, dtype=torch.float64)
    gradients._limit = 10**6
    found, *_ = contributions(gradients, theta, parts, 2, None)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
    # 7, then 3, then 1 at once, and nothing larger is tried again.
    assert device.seen[:3] == [7, 3, 1] and set(device.seen[2:]) == {1}
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "notice: cpu is out of memory: 3 at once instead of 7 from here on",
        "notice: cpu is out of memory: 1 at once instead of 3 from here on",
    ]


def test_records_too_are_computed_in_halves(small, capsys):
    net = RECORD["conv4 by record"]
    rng = np.random.default_rng(0)
    theta, x, y = (
        net.initial(rng).astype(np.float64),
        rng.random((9, 28, 28, 1)),
        np.arange(9) % 5,
    )
    gradients, wanted, found = (
        TorchGradients(net, dtype=torch.float64),
        np.empty((9, net.dimension)),
        None,
    )
    measured = gradients.each(theta, x, y, wanted)
    small(4)
    found = np.empty_like(wanted)
    again = gradients.each(theta, x, y, found)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
    np.testing.assert_allclose(again.losses, measured.losses)
    assert capsys.readouterr().err.count("out of memory") == 1


def test_no_room_for_one_task_is_one_line_that_names_the_memory(
    at_once, small, monkeypatch
):
    net, parts = NETS["plain"], tasks(count=2)
    small(0)
    gradients = TorchGradients(net, dtype=torch.float64)
    monkeypatch.setattr(gradients, "_per_record", 2**20)
    needed = 2**20 * 5 * 8 / 2**20
    line = (
        f"one task of 5 records of this network takes about {needed:,.0f} MiB on cpu,"
        " but less is free"
    )
    with pytest.raises(BenchError) as caught:
        contributions(gradients, drawn(net), parts, 2, None)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
