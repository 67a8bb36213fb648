"""Gradients of every network by every implementation equal those of autograd."""

import numpy as np
import pytest
import torch
from torch import nn

from dpfedbench.errors import BenchError
from dpfedbench.models.choose import choose
from dpsum.private_sum import PlainSum, PrivateSum

from .nets import (
    KERNELS,
    PATHS,
    Attending,
    Careful,
    Ordered,
    OwnLoss,
    Recurrent,
    Viewing,
    cnn,
    conv4,
    gradients_by,
    layers,
    of,
)

RECORD = {
    "conv4 by record": conv4(filters=5, normalisation="record"),
    "cnn": cnn(),
    "group norm": of(lambda: layers(nn.GroupNorm(2, 4))),
    "attention": of(Attending),
    "view": of(Viewing),
    "own loss": of(OwnLoss, shape=(8, 8, 2)),
    "lstm": of(Recurrent, shape=(6,), outputs=7),
    "branch on values": of(Careful),
    "bare parameter": of(Ordered),
}
BATCH = {
    "conv4": conv4(filters=5),
    "batch norm": of(lambda: layers(nn.BatchNorm2d(4, track_running_stats=False))),
}
NETS = RECORD | BATCH
IMPLEMENTATIONS = {
    "conv4 by record": ("conv4-record", "torch"),
    "cnn": ("cnn", "torch"),
    "own loss": ("torch", "torch"),
    "branch on values": ("torch-opacus", "torch-opacus"),
    "bare parameter": ("torch-loop", "torch-loop"),
    "conv4": ("conv4-batch", "torch"),
}
ONE_BY_ONE = ("branch on values", "bare parameter", "view")
"""Networks that vmap, or convolutions as products, cannot take."""
ON_GPU = ("conv4", "conv4 by record", "cnn")


def draw_tasks(net, records=7, tasks=2):
    """Return float64 weights, and records and labels of tasks."""
    rng = np.random.default_rng(0)
    theta = net.initial(rng).astype(np.float64)
    theta += 0.1 * rng.standard_normal(net.dimension)
    shape = (tasks, records, *net.input_shape)
    if net.vocabulary:
        x = rng.integers(7, size=shape)
    else:
        x = rng.integers(0, 256, shape, np.uint8)
    answers = getattr(net.module, "answers", ())
    return theta, x, rng.integers(net.outputs, size=(tasks, records, *answers))


def draw_records(net, records=7):
    """Return float32 weights, and records and labels of one task."""
    theta, x, y = draw_tasks(net, records)
    return theta.astype(np.float32), x[0], y[0]


def make_precise(name, path):
    """Return gradients, in double precision if the implementation has it, with their
    type and the allowed error.
    """
    if path.startswith("cuda") and name not in ON_GPU:
        pytest.skip("the networks of the papers are tested on a GPU")
    if path.startswith("at once") and name in ONE_BY_ONE:
        pytest.skip("the tasks of this network are computed one by one")
    single = path == "kernels" and name == "cnn"
    dtype = torch.float32 if single else torch.float64
    return gradients_by(path, NETS[name], dtype), dtype, 2e-5 if single else 1e-10


def assert_close(values, expected, tolerance):
    error = max(1.0, np.abs(expected).max()) * tolerance
    values = np.asarray(values, np.float64)
    np.testing.assert_allclose(values, expected, atol=error, rtol=0)


@PATHS
@pytest.mark.parametrize("name", NETS)
def test_gradients_and_products_of_tasks_equal_autograds(name, path):
    """The memory has values of another point."""
    net = NETS[name]
    gradients, dtype, tolerance = make_precise(name, path)
    theta, x, y = draw_tasks(net)
    points = torch.from_numpy(np.stack([theta, 0.9 * theta]))
    thetas = points.to(gradients.device, dtype)
    direction = torch.randn(thetas.shape, generator=torch.Generator().manual_seed(1))
    direction = direction.to(gradients.device, dtype)
    slopes = torch.empty_like(thetas)
    products = torch.empty_like(thetas)
    before = gradients.task_gradients(0.5 * thetas, x, y, slopes, products=True)
    point = gradients.task_gradients(thetas, x, y, slopes, products=True, into=before)
    point.product(direction, products)
    logits = gradients.logits(thetas, gradients.prepared(x))
    for i, weights in enumerate(thetas.cpu().double()):
        leaf = weights.requires_grad_()
        losses = net.losses(leaf, x[i], y[i])
        (slope,) = torch.autograd.grad(losses.mean(), leaf, create_graph=True)
        (product,) = torch.autograd.grad(slope @ direction[i].cpu().double(), leaf)
        assert point.losses[i] == pytest.approx(losses.mean().item(), rel=tolerance)
        assert_close(slopes[i].cpu(), slope.detach().numpy(), tolerance)
        assert_close(products[i].cpu(), product.numpy(), 10 * tolerance)
        assert_close(logits[i], net.logits(leaf, x[i]).detach().numpy(), tolerance)


@PATHS
@pytest.mark.parametrize("name", RECORD)
def test_gradients_of_records_equal_autograds(name, path):
    net = RECORD[name]
    gradients, dtype, tolerance = make_precise(name, path)
    theta, (x, *_), (y, *_) = draw_tasks(net, records=13)
    weights = torch.from_numpy(theta).to(gradients.device, dtype)
    rows = torch.empty(13, net.dimension, dtype=dtype, device=gradients.device)
    record_losses = gradients.record_gradients(weights, x, y, rows)
    measured = gradients.evaluate(weights, x, y)
    leaf = weights.cpu().double().requires_grad_()
    losses = net.losses(leaf, x, y)
    right, answers = net.correct(leaf, x, y)
    for i, loss in enumerate(losses):
        (slope,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        assert_close(rows[i].cpu(), slope.numpy(), tolerance)
    assert_close(record_losses, losses.detach().numpy(), tolerance)
    assert_close(measured.losses, losses.detach().numpy(), tolerance)
    assert np.array_equal(measured.right, right.numpy())
    assert np.array_equal(measured.of, answers.numpy())
    accuracy = float(right.sum() / answers.sum())
    assert measured.accuracy == pytest.approx(accuracy)


@KERNELS
@pytest.mark.parametrize("name", RECORD)
def test_gradient_of_a_record_does_not_depend_on_other_records(name, path):
    net = RECORD[name]
    gradients = gradients_by(path, net, torch.float32)
    theta, x, y = draw_records(net)
    before = np.empty((len(x), net.dimension), np.float32)
    after = np.empty_like(before)
    gradients.record_gradients(theta, x, y, before)
    x[2] = 1
    gradients.record_gradients(theta, x, y, after)
    assert (np.delete(before, 2, 0) == np.delete(after, 2, 0)).all()
    assert (before[2] != after[2]).any()


@KERNELS
@pytest.mark.parametrize("name", RECORD)
@pytest.mark.parametrize("private", [True, False])
def test_gradients_added_to_a_sum_are_those_of_single_records(name, private, path):
    net = RECORD[name]
    gradients = gradients_by(path, net, torch.float32)
    theta, x, y = draw_records(net, records=23)
    rows = np.empty((23, net.dimension), np.float32)
    losses = gradients.record_gradients(theta, x, y, rows)

    def make_total():
        if private:
            return PrivateSum(
                dimension=net.dimension, threshold=0.5, noise_multiplier=1.0
            )
        return PlainSum(dimension=net.dimension)

    total = make_total()
    added_losses, norms = gradients.add_record_gradients(theta, x, y, total)
    by_rows = make_total()
    expected_norms = by_rows.add(torch.from_numpy(rows))
    assert added_losses == pytest.approx(losses, rel=1e-5)
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    release = total.release(np.zeros(net.dimension))
    expected = by_rows.release(np.zeros(net.dimension))
    np.testing.assert_allclose(release, expected, atol=1e-4)
    buffer = np.empty((5, net.dimension), np.float32)
    pieces = [
        np.array(piece)
        for _, piece in gradients.record_gradient_pieces(theta, x, y, buffer)
    ]
    np.testing.assert_allclose(np.concatenate(pieces), rows, atol=1e-5)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_choose_takes_the_best_implementation(name):
    kernel, torch_name = IMPLEMENTATIONS[name]
    assert choose(NETS[name]).name == kernel
    assert choose(NETS[name], enabled=False).name == torch_name


# Arguments that do not fit: compiled loops would read beyond the arrays


@KERNELS
@pytest.mark.parametrize("name", ["conv4", "conv4 by record", "group norm"])
@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("theta", (1, 5)),
        ("theta", (3, None)),
        ("x", (2, 6, 28, 27, 1)),
        ("x", (5, 28, 28, 1)),
        ("y", (2, 4)),
        ("y", (1, 5)),
        ("out", (2, 7)),
        ("out", (3, None)),
    ],
)
def test_tasks_of_other_sizes_are_refused(name, key, shape, path):
    net = NETS[name]
    arguments = {
        "theta": np.zeros((2, net.weights), np.float32),
        "x": np.zeros((2, 5, *net.input_shape), np.float32),
        "y": np.zeros((2, 5), np.int64),
        "out": np.zeros((2, net.weights), np.float32),
    }
    sides = [side or net.weights for side in shape]
    arguments[key] = np.zeros(sides, arguments[key].dtype)
    gradients = gradients_by(path, net, torch.float32)
    with pytest.raises(ValueError):
        gradients.task_gradients(*arguments.values())


@KERNELS
def test_records_of_a_network_that_mixes_them_have_no_gradient(path):
    net = BATCH["conv4"]
    theta, x, y = draw_records(net)
    rows = np.empty((len(x), net.dimension), np.float32)
    with pytest.raises(BenchError, match=r"mixes records in layer block1 .*GroupNorm"):
        gradients_by(path, net, torch.float32).record_gradients(theta, x, y, rows)
