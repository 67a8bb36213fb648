"""Gradients of every network by every implementation equal those of autograd."""

import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.models.choose import Choice, choose
from dpfedbench.models.patches import ConvolutionsAsProducts
from dpfedbench.models.threads import Workers
from dpfedbench.training.mechanisms import make_accumulator
from dpsum.private_sum import PlainSum, PrivateSum

from .nets import (
    KERNELS,
    PATHS,
    Attending,
    Careful,
    Ordered,
    OwnLoss,
    Recurrent,
    Tied,
    Twice,
    Viewing,
    cnn,
    conv4,
    gradients_by,
    layers,
    of,
    with_group_norm,
)

RECORD = {
    "conv4 by record": conv4(filters=5, normalisation="record"),
    "cnn": cnn(),
    "group norm": of(with_group_norm),
    "attention": of(Attending),
    "view": of(Viewing),
    "own loss": of(OwnLoss),
    "lstm": of(Recurrent, shape=(6,), outputs=7),
    "branch on values": of(Careful),
    "bare parameter": of(Ordered),
    "shared weights": of(Tied),
    "shared layer": of(Twice),
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
    "branch on values": ("torch-loop", "torch-loop"),
    "bare parameter": ("torch-loop", "torch-loop"),
    "shared weights": ("torch", "torch"),
    "shared layer": ("torch", "torch"),
    "conv4": ("conv4-batch", "torch"),
}
ONE_BY_ONE = ("branch on values", "bare parameter", "view")
"""Networks that vmap, or convolutions as products, cannot take."""
ON_GPU = ("conv4", "conv4 by record", "cnn")
PRIVATE = functools.partial(PrivateSum, threshold=0.5, noise_multiplier=1.0)


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
    """Return float32 weights, records and labels of one task, and an array of rows."""
    theta, (x, *_), (y, *_) = draw_tasks(net, records)
    return (
        theta.astype(np.float32),
        x,
        y,
        np.empty((records, net.dimension), np.float32),
    )


def make_precise(name, path):
    """Return gradients in the best precision, their type and the allowed error."""
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
    labels = torch.from_numpy(y)
    _, right, answers = net.apply("measures", leaf, net.inputs(x, leaf), labels)
    for i, loss in enumerate(losses):
        (slope,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        assert_close(rows[i].cpu(), slope.numpy(), tolerance)
    assert_close(record_losses, losses.detach().numpy(), tolerance)
    assert_close(measured.losses, losses.detach().numpy(), tolerance)
    assert np.array_equal(measured.right, right.numpy())
    assert np.array_equal(measured.of, answers.numpy())
    assert measured.accuracy == pytest.approx(float(right.sum() / answers.sum()))


@KERNELS
@pytest.mark.parametrize("name", RECORD)
def test_gradient_of_a_record_does_not_depend_on_other_records(name, path):
    gradients = gradients_by(path, RECORD[name], torch.float32)
    theta, x, y, before = draw_records(RECORD[name])
    after = np.empty_like(before)
    gradients.record_gradients(theta, x, y, before)
    x[2] = 1
    gradients.record_gradients(theta, x, y, after)
    assert (np.delete(before, 2, 0) == np.delete(after, 2, 0)).all()
    assert (before[2] != after[2]).any()


@KERNELS
@pytest.mark.parametrize("name", RECORD)
@pytest.mark.parametrize("make_total", [PRIVATE, PlainSum], ids=["private", "plain"])
def test_gradients_added_to_a_sum_are_those_of_single_records(name, make_total, path):
    net = RECORD[name]
    gradients = gradients_by(path, net, torch.float32)
    theta, x, y, rows = draw_records(net, records=23)
    losses = gradients.record_gradients(theta, x, y, rows)
    total = make_total(dimension=net.dimension)
    by_rows = make_total(dimension=net.dimension)
    added_losses, norms = gradients.add_record_gradients(
        theta, x, y, make_accumulator(total)
    )
    assert added_losses == pytest.approx(losses, rel=1e-5)
    assert norms == pytest.approx(by_rows.add(torch.from_numpy(rows)), rel=1e-5)
    release, expected = (
        sum_.release(np.zeros(net.dimension)) for sum_ in (total, by_rows)
    )
    np.testing.assert_allclose(release, expected, atol=1e-4)
    room = np.empty((5, net.dimension), np.float32)
    summed = gradients.summed_record_gradients(theta, x, y, room)
    expected = rows.astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(summed, expected, atol=1e-4)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_choose_takes_the_best_implementation(name):
    kernel, torch_name = IMPLEMENTATIONS[name]
    assert choose(NETS[name]).name == kernel
    assert choose(NETS[name], enabled=False).name == torch_name


# Named blocks of a network


class Blocks(nn.Module):
    """A module in two blocks."""

    def __init__(self, body):
        super().__init__()
        self.body = body()
        self.factor = nn.Linear(3, 3)

    @property
    def blocks(self):
        names = [name for name, _ in self.named_parameters()]
        return {"body": tuple(names[:-2]), "factor": tuple(names[-2:])}

    def forward(self, x):
        return self.factor(self.body(x))


@pytest.mark.parametrize(
    ("implementation", "body"),
    [("torch", with_group_norm), ("torch-loop", Careful), ("torch-loop", Ordered)],
)
def test_block_gradients_are_columns_of_the_whole_gradients(implementation, body):
    net = of(lambda: Blocks(body))
    choice = choose(net)
    assert choice.name == implementation
    start = net.dimension - 12
    assert net.blocks == {
        "body": slice(0, start),
        "factor": slice(start, net.dimension),
    }
    theta, x, y, whole = draw_records(net)
    gradients = choice.make()
    gradients.record_gradients(theta, x, y, whole)
    for block, coordinates in net.blocks.items():
        width = gradients.width(block)
        rows = np.empty((len(x), width), np.float32)
        gradients.record_gradients(theta, x, y, rows, block=block)
        np.testing.assert_allclose(rows, whole[:, coordinates], rtol=1e-5, atol=1e-6)
        total = PRIVATE(dimension=width)
        _, norms = gradients.add_record_gradients(
            theta, x, y, make_accumulator(total), block=block
        )
        expected = np.linalg.norm(whole[:, coordinates], axis=1)
        np.testing.assert_allclose(norms, expected, rtol=1e-5)


def test_head_of_a_network_with_blocks_is_in_its_first_block():
    assert of(lambda: Blocks(layers)).head == ("body.3.weight", "body.3.bias")
    assert of(layers).blocks == {}


@pytest.mark.parametrize(
    "names", [("factor.weight",), ("factor.bias", "factor.weight")]
)
def test_blocks_have_to_name_all_parameters_in_order(names, monkeypatch):
    monkeypatch.setattr(Blocks, "blocks", {"a": names})
    with pytest.raises(BenchError, match="must name all its parameters in order"):
        _ = of(lambda: Blocks(nn.Identity)).blocks


# The path of a GPU on a CPU: convolutions as products, and chunks that are too large


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
    """The value has the usual strides: with others, cuDNN fails under `vmap`."""
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
    assert products[0].is_contiguous()


def test_chunk_that_is_too_large_is_halved_with_a_notice(monkeypatch, capsys):
    """The path computes 7, then 3, then 1 at once, and tries no larger chunk again."""
    net = conv4(filters=4)
    theta, x, y = draw_tasks(net, tasks=7)
    thetas = torch.from_numpy(np.tile(theta, (7, 1)))
    expected = torch.empty_like(thetas)
    slopes = torch.empty_like(thetas)
    gradients_by("at once", net).task_gradients(thetas, x, y, expected)
    counts = []
    vmap = torch.func.vmap

    def vmap_of_a_small_device(function, *sizes):
        def call(*arguments):
            counts.append(max(len(x) for x in arguments if torch.is_tensor(x)))
            if counts[-1] > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return vmap(function, *sizes)(*arguments)

        return call

    monkeypatch.setattr(torch.func, "vmap", vmap_of_a_small_device)
    gradients = gradients_by("at once", net)
    gradients._limit = 10**6
    gradients.task_gradients(thetas, x, y, slopes)
    np.testing.assert_allclose(slopes, expected, rtol=0, atol=1e-12)
    assert counts[:3] == [7, 3, 1]
    assert set(counts[2:]) == {1}
    assert capsys.readouterr().err.splitlines() == [
        "notice: cpu is out of memory: 3 at once instead of 7 from here on",
        "notice: cpu is out of memory: 1 at once instead of 3 from here on",
    ]


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
    gradients = gradients_by(path, BATCH["conv4"], torch.float32)
    with pytest.raises(BenchError, match=r"mixes records in layer block1 .*GroupNorm"):
        gradients.record_gradients(*draw_records(BATCH["conv4"]))


def test_threads_products_take_no_threads_of_their_own():
    """torch has a number of threads for each thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        choice = Choice("none", lambda: None, "cpu")
        with Workers(choice, lambda _: None, threads=2).running() as pool:
            counts = list(pool.map(lambda _: torch.get_num_threads(), range(4)))
            assert [*counts, torch.get_num_threads()] == [1] * 5
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
