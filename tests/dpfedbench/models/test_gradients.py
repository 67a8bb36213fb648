"""Every network by every implementation: derivatives equal autograd's, and another
record changes nothing.
"""

import numpy as np
import pytest
import torch
from torch import nn

from dpfedbench.errors import BenchError
from dpfedbench.models.choose import choose
from dpfedbench.models.gradients import Workers
from dpfedbench.models.torch_gradients import TorchGradients, _AllAtOnce
from dpsum.private_sum import PlainSum, PrivateSum

from .nets import (
    Attending,
    Careful,
    Ordered,
    OwnLoss,
    Recurrent,
    cnn,
    conv4,
    layers,
    of,
)

RECORD = {
    "conv4 by record": conv4(filters=5, normalisation="record"),
    "cnn": cnn(),
    "group norm": of(lambda: layers(nn.GroupNorm(2, 4))),
    "attention": of(Attending),
    "own loss": of(OwnLoss, shape=(8, 8, 2)),
    "lstm": of(Recurrent, shape=(6,), outputs=7),
    "looks at numbers": of(Careful),
    "a parameter of its own": of(Ordered),
}
BATCH = {
    "conv4": conv4(filters=5),
    "batch norm": of(lambda: layers(nn.BatchNorm2d(4, track_running_stats=False))),
}
NAMES = {
    "conv4 by record": ("conv4-record", "torch"),
    "cnn": ("cnn", "torch"),
    "own loss": ("torch", "torch"),
    "looks at numbers": ("torch-opacus", "torch-opacus"),
    "a parameter of its own": ("torch-loop", "torch-loop"),
    "conv4": ("conv4-batch", "torch"),
}
KERNELS = pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])


def drawn(net, records=7, tasks=2, seed=0):
    """Weights, records and labels of tasks, in double precision where they are not
    bytes or tokens.
    """
    rng = np.random.default_rng(seed)
    theta = net.initial(rng).astype(np.float64) + 0.1 * rng.standard_normal(
        net.dimension
    )
    shape, answers = (
        (tasks, records, *net.input_shape),
        getattr(net.module, "answers", ()),
    )
    x = (
        rng.integers(7, size=shape)
        if net.vocabulary
        else rng.integers(0, 256, shape, np.uint8)
    )
    return theta, x, rng.integers(net.outputs, size=(tasks, records, *answers))


def precise(net, kernels):
    """In double precision, if that is what the implementation has."""
    single = kernels and type(net.module).__name__ == "Cnn"
    dtype = torch.float32 if single else torch.float64
    return (
        choose(net, enabled=kernels, dtype=dtype).make(),
        dtype,
        2e-5 if single else 1e-10,
    )


def assert_close(found, wanted, tolerance):
    scale = max(1.0, np.abs(wanted).max()) * tolerance
    np.testing.assert_allclose(
        np.asarray(found, np.float64), wanted, atol=scale, rtol=0
    )


class Linear(nn.Module):
    """A loss that is linear in one tensor and does not depend on the other."""

    def __init__(self):
        super().__init__()
        self.weight, self.unused = (
            nn.Parameter(torch.ones(128)),
            nn.Parameter(torch.ones(2)),
        )

    def forward(self, x):
        return (x.flatten(1) @ self.weight)[:, None].expand(-1, 3)

    def losses(self, x, y):
        return self(x)[:, 0]


def test_a_linear_loss_has_no_second_derivatives():
    net = of(Linear)
    theta, x, y = drawn(net)
    thetas = torch.from_numpy(np.stack([theta, 0.9 * theta]))
    slopes, products = torch.full_like(thetas, 7), torch.full_like(thetas, 7)
    point = TorchGradients(net, dtype=torch.float64).at(
        thetas, x, y, slopes, products=True
    )
    point.product(thetas, products)
    means = (x / 255).transpose(0, 1, 4, 2, 3).reshape(2, 7, 128).mean(1)
    np.testing.assert_allclose(slopes, np.pad(means, ((0, 0), (0, 2))), atol=1e-12)
    assert not products.any()


def test_a_layer_without_second_derivatives_is_named():
    net = of(lambda: layers(nn.Hardsigmoid()))
    theta, x, y = drawn(net)
    thetas = torch.from_numpy(theta)[None]
    out = torch.empty_like(thetas)
    point = TorchGradients(net, dtype=torch.float64).at(
        thetas, x[:1], y[:1], out, products=True
    )
    with pytest.raises(
        BenchError, match=r"Sequential has no second derivatives \(.*hardsigmoid"
    ):
        point.product(thetas, torch.empty_like(thetas))


class Viewing(nn.Module):
    """What many a module does: `view`, which takes maps only as torch lays them in
    memory.
    """

    def __init__(self, channels):
        super().__init__()
        self.convolution, self.linear = (
            nn.Conv2d(channels, 4, 3, padding=1),
            nn.Linear(256, 3),
        )

    def forward(self, x):
        return self.linear(torch.relu(self.convolution(x)).view(x.size(0), -1))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_module_may_view_its_maps(channels):
    net = of(lambda: Viewing(channels), shape=(8, 8, channels))
    theta, x, y = drawn(net)
    gradients = TorchGradients(net, dtype=torch.float64)
    gradients.at(
        torch.from_numpy(np.stack([theta, theta])),
        x,
        y,
        torch.empty(2, len(theta)).double(),
    )
    gradients.each(
        torch.from_numpy(theta), x[0], y[0], torch.empty(7, len(theta)).double()
    )


@KERNELS
@pytest.mark.parametrize("name", [*RECORD, *BATCH])
def test_derivatives_of_tasks_equal_those_of_autograd(name, kernels):
    net = (RECORD | BATCH)[name]
    gradients, dtype, tolerance = precise(net, kernels)
    theta, x, y = drawn(net)
    thetas = torch.from_numpy(np.stack([theta, 0.9 * theta])).to(dtype)
    direction = torch.from_numpy(
        np.random.default_rng(1).standard_normal(thetas.shape)
    ).to(dtype)
    slopes, products = torch.empty_like(thetas), torch.empty_like(thetas)
    # In memory that another point has left.
    before = gradients.at(0.5 * thetas, x, y, slopes, products=True)
    point = gradients.at(thetas, x, y, slopes, products=True, into=before)
    point.product(direction, products)
    logits = gradients.logits(thetas, gradients.prepared(x))
    for i, weights in enumerate(thetas.double()):
        leaf = weights.requires_grad_()
        losses = net.losses(leaf, x[i], y[i])
        right, answers = net.correct(leaf, x[i], y[i])
        (slope,) = torch.autograd.grad(losses.mean(), leaf, create_graph=True)
        (product,) = torch.autograd.grad(slope @ direction[i].double(), leaf)
        assert point.losses[i] == pytest.approx(losses.mean().item(), rel=tolerance)
        assert point.accuracies[i] == pytest.approx(
            (right.sum() / answers.sum()).item()
        )
        assert_close(slopes[i], slope.detach().numpy(), tolerance)
        assert_close(products[i], product.numpy(), 10 * tolerance)
        assert_close(logits[i], net.logits(leaf, x[i]).detach().numpy(), tolerance)


@KERNELS
@pytest.mark.parametrize("name", RECORD)
def test_gradients_of_records_equal_those_of_autograd(name, kernels):
    net = RECORD[name]
    gradients, dtype, tolerance = precise(net, kernels)
    theta, (x, *_), (y, *_) = drawn(net, records=13)
    own = torch.from_numpy(theta).to(dtype)
    rows = torch.empty(13, net.dimension, dtype=dtype)
    found, measured = gradients.each(own, x, y, rows), gradients.evaluate(own, x, y)
    leaf = own.double().requires_grad_()
    losses, (right, of_all) = net.losses(leaf, x, y), net.correct(leaf, x, y)
    for i, loss in enumerate(losses):
        (slope,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        assert_close(rows[i], slope.numpy(), tolerance)
    for each in (found, measured):
        assert_close(each.losses, losses.detach().numpy(), tolerance)
        assert np.array_equal(each.right, right.numpy()) and np.array_equal(
            each.of, of_all.numpy()
        )
        assert each.accuracy == pytest.approx(float(right.sum() / of_all.sum()))


@KERNELS
@pytest.mark.parametrize("name", RECORD)
def test_another_record_changes_nothing(name, kernels):
    net = RECORD[name]
    gradients = choose(net, enabled=kernels).make()
    theta, (x, *_), (y, *_) = drawn(net)
    theta = theta.astype(np.float32)
    before, after = np.empty((2, len(x), net.dimension), np.float32)
    gradients.each(theta, x, y, before)
    x[2] = 1
    gradients.each(theta, x, y, after)
    assert (np.delete(before, 2, 0) == np.delete(after, 2, 0)).all() and (
        before[2] != after[2]
    ).any()


@KERNELS
@pytest.mark.parametrize("name", RECORD)
@pytest.mark.parametrize("private", [True, False])
def test_gradients_go_to_a_sum_as_they_would_one_by_one(name, private, kernels):
    net = RECORD[name]
    gradients = choose(net, enabled=kernels).make()
    theta, (x, *_), (y, *_) = drawn(net, records=23)
    theta, rows = theta.astype(np.float32), np.empty((23, net.dimension), np.float32)
    losses = gradients.each(theta, x, y, rows).losses
    totals = []
    for _ in range(2):
        total = PlainSum(dimension=net.dimension)
        if private:
            total = PrivateSum(
                dimension=net.dimension, threshold=0.5, noise_multiplier=1.0
            )
        totals.append(total)
    found, norms = gradients.add_each(theta, x, y, totals[0])
    wanted = totals[1].add(torch.from_numpy(rows))
    assert found.losses == pytest.approx(losses, rel=1e-5) and norms == pytest.approx(
        wanted, rel=1e-5
    )
    sums = [total.release(np.random.default_rng(0)) for total in totals]
    np.testing.assert_allclose(sums[0], sums[1], atol=1e-4)
    pieces = [
        np.array(rows)
        for _, rows in gradients.pieces(
            theta, x, y, np.empty((5, net.dimension), np.float32)
        )
    ]
    np.testing.assert_allclose(np.concatenate(pieces), rows, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_implementation_has_a_name(name):
    net = (RECORD | BATCH)[name]
    assert (
        tuple(choose(net, enabled=enabled).name for enabled in (True, False))
        == NAMES[name]
    )


@pytest.mark.parametrize(
    "name", ["conv4", "conv4 by record", "cnn", "group norm", "batch norm", "own loss"]
)
def test_tasks_all_at_once_are_as_one_by_one(name):
    """What a GPU does, here on the CPU."""
    net = (RECORD | BATCH)[name]
    gradients = TorchGradients(net, dtype=torch.float64)
    theta, x, y = drawn(net)
    thetas, inputs = (
        torch.from_numpy(np.stack([theta, 0.9 * theta])),
        gradients.prepared(x),
    )
    slopes, others, *products = (torch.empty_like(thetas) for _ in range(4))
    one_by_one = gradients.at(thetas, inputs, y, slopes, products=True)
    together = _AllAtOnce(gradients, thetas, inputs.value, torch.from_numpy(y), others)
    assert gradients._vmaps_tasks
    assert together.losses == pytest.approx(one_by_one.losses)
    for point, product in zip((one_by_one, together), products, strict=True):
        point.product(torch.ones_like(thetas), product)
    torch.testing.assert_close(slopes, others)
    torch.testing.assert_close(*products)
    assert together.accuracies == pytest.approx(one_by_one.accuracies)


@KERNELS
@pytest.mark.parametrize("name", ["conv4", "conv4 by record", "group norm"])
@pytest.mark.parametrize(
    "change",
    [
        {"theta": (1, 5)},
        {"theta": (3, None)},
        {"x": (2, 6, 28, 27, 1)},
        {"y": (2, 4)},
        {"y": (1, 5)},
        {"x": (5, 28, 28, 1)},
        {"out": (2, 7)},
        {"out": (3, None)},
    ],
)
def test_tasks_of_sizes_that_do_not_fit_are_refused(name, change, kernels):
    net = (RECORD | BATCH)[name]
    shapes = {
        "theta": (2, None),
        "x": (2, 5, *net.input_shape),
        "y": (2, 5),
        "out": (2, None),
    } | change
    theta, x, y, out = (
        np.zeros(
            [net.weights if side is None else side for side in shape],
            np.int64 if key == "y" else np.float32,
        )
        for key, shape in shapes.items()
    )
    with pytest.raises(ValueError):
        choose(net, enabled=kernels).make().at(theta, x, y, out)


@KERNELS
@pytest.mark.parametrize(
    "change",
    [
        {"theta": np.zeros(5, np.float32)},
        {"theta": np.zeros(26_010)},
        {"x": np.zeros((2, 28, 27, 1), np.uint8)},
        {"y": np.zeros(3, np.int64)},
        {"y": np.zeros(2, np.int32)},
        {"y": np.array([0, 10])},
        {"y": np.array([-1, 0])},
        {"out": np.zeros((3, 26_010), np.float32)},
        {"out": np.zeros((26_010, 2), np.float32).T},
        {"y": torch.tensor([0, 10])},
    ],
)
def test_records_of_sizes_that_do_not_fit_are_refused(change, kernels):
    arguments = {
        "theta": np.zeros(26_010, np.float32),
        "x": np.zeros((2, 28, 28, 1), np.uint8),
        "y": np.zeros(2, np.int64),
        "out": np.zeros((2, 26_010), np.float32),
    } | change
    with pytest.raises(ValueError):
        choose(RECORD["cnn"], enabled=kernels).make().each(*arguments.values())


@KERNELS
def test_records_of_a_network_that_mixes_them_have_no_gradient(kernels):
    net = BATCH["conv4"]
    theta, (x, *_), (y, *_) = drawn(net)
    out = np.empty((len(x), net.dimension), np.float32)
    with pytest.raises(BenchError, match=r"mixes records in layer block1 .*GroupNorm"):
        choose(net, enabled=kernels).make().each(theta.astype(np.float32), x, y, out)


def test_learnt_rates_are_not_for_records():
    net = RECORD["conv4 by record"].with_rates(2, 0.1)
    with pytest.raises(ValueError, match="rates"):
        theta, (x, *_), (y, *_) = drawn(net)
        choose(net).make().each(
            theta.astype(np.float32), x, y, np.empty((7, net.dimension), np.float32)
        )


def test_workers_split_tasks_by_thread():
    workers = Workers(
        choose(RECORD["cnn"]), lambda gradients: gradients.net.dimension, threads=2
    )
    assert (workers.name, workers.device, workers.chunk) == ("cnn", "cpu", 16)
    assert workers.split(2) == [slice(0, 1), slice(1, 2)]
    workers._tasks = 4
    assert workers.split(4) == [slice(0, 2), slice(2, 4)]  # neither of the two waits
    assert workers.split(9) == [slice(0, 4), slice(4, 8), slice(8, 9)]
    assert workers.split(1) == [slice(0, 1)] and workers.split(0) == []
    with workers.worker() as dimension:
        assert dimension == 26_010
