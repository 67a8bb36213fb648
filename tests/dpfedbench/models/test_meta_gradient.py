"""Meta-gradients and adaptation against learn2learn, a graph across the steps, and by
hand, in float64.
"""

import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.models.choose import choose
from dpfedbench.models.meta_gradient import Adaptation, MetaGradient
from dpkernels.batch_conv4 import BatchConv4

from .nets import cnn, conv4

STEPS = 3
RATE = 0.1
PLAIN = conv4(filters=6)
RATES = conv4(filters=6, rates=(STEPS, RATE))
NETS = {
    "conv4": PLAIN,
    "learnt rates": RATES,
    "conv4 by record": conv4(filters=6, normalisation="record"),
    "cnn": cnn(),
}
WEIGHTS = np.array([0.2, 0.1, 0.7])
KERNELS = pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])


def draw_tasks(seed=1, count=2, support=5, query=10):
    """Return support and query images [count, n, ...] and labels: sx, sy, qx, qy."""
    rng = np.random.default_rng(seed)
    shape = (count, support + query, 28, 28, 1)
    x = rng.random(shape) * (rng.random(shape) > 0.6)
    y = np.tile(np.arange(support + query) % 5, (count, 1))
    return x[:, :support], y[:, :support], x[:, support:], y[:, support:]


def draw_theta(net):
    """Return weights with a head that is not zero, and rates that differ."""
    rng = np.random.default_rng(0)
    theta = net.initial(rng).astype(np.float64)
    theta[: net.weights] += 0.05 * rng.normal(size=net.weights)
    theta[net.weights :] *= rng.uniform(0.2, 2, len(theta) - net.weights)
    return theta


def gradients_of(net, kernels=True, dtype=torch.float64):
    return choose(net, enabled=kernels, dtype=dtype).make()


def contributions(
    net, theta, parts, *, kernels=True, weights=None, steps=STEPS, order=2, adapted=None
):
    out = np.empty((len(parts[0]), net.dimension))
    meta = MetaGradient(
        gradients_of(net, kernels), steps=steps, rate=RATE, order=order, adapted=adapted
    )
    losses, accuracies = meta.contribution(theta, *parts, out, weights)
    assert losses.shape == accuracies.shape == (len(out),)
    return out


def graph_gradient(
    net, theta, sx, sy, qx, qy, *, order, steps=STEPS, weights=None, adapted=None
):
    """Return one task's gradient by a graph across the steps."""
    step_weights = np.eye(steps)[-1] if weights is None else weights
    leaves = {
        name: tensor.double().detach().clone().requires_grad_()
        for name, tensor in net.tensors(torch.from_numpy(theta)).items()
    }
    current = {name: leaf for name, leaf in leaves.items() if name != "rates"}

    def loss(tensors, x, y):
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
        return net.losses(flat, x, y).mean()

    total = 0.0
    for step in range(steps):
        support_loss = loss(current, sx, sy)
        slopes = torch.autograd.grad(
            support_loss, list(current.values()), create_graph=True
        )
        moved = {}
        for index, (name, slope) in enumerate(zip(current, slopes, strict=True)):
            rate = leaves["rates"][step, index] if "rates" in leaves else RATE
            rate = rate * (adapted is None or name in adapted)
            moved[name] = current[name] - rate * (
                slope if order == 2 else slope.detach()
            )
        current = moved
        total = total + step_weights[step] * loss(current, qx, qy)
    parts = torch.autograd.grad(total, list(leaves.values()))
    return torch.cat([part.reshape(-1) for part in parts]).numpy()


def graph_gradients(net, theta, parts, **options):
    return np.stack(
        [
            graph_gradient(net, theta, *task, **options)
            for task in zip(*parts, strict=True)
        ]
    )


def learn2learn_gradient(net, theta, sx, sy, qx, qy, *, order, steps):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gym, which learn2learn imports, is old
        learn2learn = pytest.importorskip(
            "learn2learn",
            reason="not installed: uv sync --group reference (C compiler)",
        )

    class FlatConv4(torch.nn.Module):
        """Conv-4 as a module with one parameter, the flat vector."""

        def __init__(self):
            super().__init__()
            self.theta = torch.nn.Parameter(torch.tensor(theta))

        def forward(self, x):
            return net.logits(self.theta, x)

    maml = learn2learn.algorithms.MAML(FlatConv4(), lr=RATE, first_order=order == 1)
    clone = maml.clone()
    for _ in range(steps):
        clone.adapt(functional.cross_entropy(clone(torch.tensor(sx)), torch.tensor(sy)))
    functional.cross_entropy(clone(torch.tensor(qx)), torch.tensor(qy)).backward()
    return maml.module.theta.grad.numpy()


def assert_rows_close(rows, expected, net):
    """Compare weights and rates, each by its own scale: rates are few."""
    for row, expected_row in zip(rows, expected, strict=True):
        for part in (slice(None, net.weights), slice(net.weights, None)):
            error = 1e-8 * np.abs(expected_row[part]).max(initial=0)
            np.testing.assert_allclose(row[part], expected_row[part], atol=error)


@KERNELS
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("steps", [1, 5])
def test_contributions_equal_learn2learn(steps, order, kernels):
    theta = draw_theta(PLAIN)
    parts = draw_tasks()
    options = {"order": order, "steps": steps}
    expected = [
        learn2learn_gradient(PLAIN, theta, *task, **options)
        for task in zip(*parts, strict=True)
    ]
    rows = contributions(PLAIN, theta, parts, kernels=kernels, **options)
    assert_rows_close(rows, expected, PLAIN)


@KERNELS
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["last loss", "all losses"])
@pytest.mark.parametrize("name", NETS)
def test_contributions_equal_a_graph_across_the_steps(name, weights, order, kernels):
    if name == "cnn" and kernels:
        pytest.skip("the CNN's kernel has no double precision")
    net = NETS[name]
    theta = draw_theta(net)
    parts = draw_tasks()
    options = {"order": order, "weights": weights}
    rows = contributions(net, theta, parts, kernels=kernels, **options)
    assert_rows_close(rows, graph_gradients(net, theta, parts, **options), net)


@KERNELS
@pytest.mark.parametrize("net", [PLAIN, RATES])
def test_tensors_that_do_not_adapt_stay_and_still_get_a_gradient(net, kernels):
    theta = draw_theta(net)
    parts = draw_tasks()
    rows = contributions(net, theta, parts, kernels=kernels, adapted=net.head)
    expected = graph_gradients(net, theta, parts, order=2, adapted=net.head)
    body = net.weights - sum(net.sizes[-2:])
    weights = slice(None, net.weights)
    assert np.abs(rows[:, :body]).max() > 0
    np.testing.assert_allclose(rows[:, weights], expected[:, weights], atol=1e-9)
    adaptation = Adaptation(gradients_of(net, kernels), adapted=net.head)
    adapted = adaptation.adapt(theta, *parts[:2], steps=2, rate=RATE).numpy()
    assert (adapted[:, :body] == theta[:body]).all()
    assert (adapted[:, body:] != theta[body : net.weights]).any()


@KERNELS
def test_contribution_does_not_depend_on_other_tasks(kernels):
    theta = PLAIN.initial(np.random.default_rng(3))
    sx, sy, qx, qy = draw_tasks(count=3)
    parts = (sx.astype(np.float32), sy, qx.astype(np.float32), qy)
    gradients = gradients_of(PLAIN, kernels, torch.float32)
    meta = MetaGradient(gradients, steps=STEPS, rate=RATE)
    whole = np.empty((3, PLAIN.dimension), np.float32)
    meta.contribution(theta, *parts, whole)
    single = np.empty_like(whole)
    for i in (2, 0, 1):
        task = slice(i, i + 1)
        meta.contribution(theta, *(part[task] for part in parts), single[task])
    assert np.array_equal(whole, single)


@pytest.mark.parametrize(
    ("order", "steps", "adapted"),
    [(2, 3, None), (2, 1, None), (1, 3, None), (2, 2, PLAIN.head)],
)
def test_contributions_in_one_call_have_the_bits_of_step_by_step(
    order, steps, adapted, monkeypatch
):
    """Query sets have several sizes, so memory is used again."""
    net = conv4(filters=16)
    theta = draw_theta(net).astype(np.float32)
    in_one_call = BatchConv4.through_steps
    options = {"steps": steps, "rate": RATE, "order": order, "adapted": adapted}

    def results():
        meta = MetaGradient(gradients_of(net, dtype=torch.float32), **options)
        for seed, query in enumerate((10, 5, 10)):
            sx, sy, qx, qy = draw_tasks(seed, count=3, query=query)
            out = np.empty((3, net.dimension), np.float32)
            measures = meta.contribution(
                theta, sx.astype(np.float32), sy, qx.astype(np.float32), qy, out
            )
            yield from (out, *measures)

    calls = []

    def watched(*args, **options):
        calls.append(1)
        return in_one_call(*args, **options)

    monkeypatch.setattr(BatchConv4, "through_steps", watched)
    whole = list(results())
    assert len(calls) == 3
    monkeypatch.setattr(BatchConv4, "through_steps", lambda *_, **__: None)
    for array, by_steps in zip(whole, results(), strict=True):
        assert np.array_equal(array, by_steps)


@KERNELS
@pytest.mark.parametrize(
    ("changed", "change"),
    [
        ([0], lambda x: x[:2]),
        ([2], lambda x: x[:2]),
        ([1], lambda y: y[:, :4]),
        ([3], lambda y: y[:2]),
        ([2, 3], lambda query: query[:2]),
        ([1], lambda y: y + 1),
        ([3], lambda y: y - 1),
        ([0], lambda x: x[:, :, :, :26]),
    ],
)
def test_tasks_whose_parts_do_not_fit_are_refused(kernels, changed, change):
    parts = list(draw_tasks(count=3))
    for index in changed:
        parts[index] = change(parts[index])
    with pytest.raises((ValueError, IndexError)):
        contributions(PLAIN, draw_theta(PLAIN), parts, kernels=kernels)


@pytest.mark.parametrize("index", [1, 3])
def test_labels_that_are_no_matrix_are_refused(index):
    parts = list(draw_tasks(count=3))
    parts[index] = parts[index][..., None]
    with pytest.raises(ValueError, match="images need as many labels"):
        contributions(PLAIN, draw_theta(PLAIN), parts)


def test_first_order_reads_the_support_through_the_adapted_weights_alone():
    """Property 11: the contribution is the query gradient at the adapted weights. That
    of second order is not.
    """
    theta = draw_theta(PLAIN)
    parts = draw_tasks(4)
    sx, sy, qx, qy = (part[0] for part in parts)
    weights = torch.tensor(theta, requires_grad=True)
    loss = PLAIN.losses(weights, sx, sy).mean()
    (slope,) = torch.autograd.grad(loss, weights)
    adapted = (weights - RATE * slope).detach().requires_grad_()
    (expected,) = torch.autograd.grad(PLAIN.losses(adapted, qx, qy).mean(), adapted)
    first = contributions(PLAIN, theta, parts, steps=1, order=1)[0]
    np.testing.assert_allclose(first, expected.numpy(), atol=1e-12)
    second = contributions(PLAIN, theta, parts, steps=1, order=2)[0]
    assert np.abs(second - expected.numpy()).max() > 1e-4


@KERNELS
@pytest.mark.parametrize("net", [PLAIN, conv4(filters=6, normalisation="record")])
@pytest.mark.parametrize("steps", [0, 2])
def test_adaptation_is_plain_gradient_descent(net, kernels, steps):
    theta = draw_theta(net)
    parts = draw_tasks(5)
    adaptation = Adaptation(gradients_of(net, kernels))
    logits = adaptation.logits(theta, *parts[:3], steps=steps, rate=RATE)
    for row, sx, sy, qx in zip(logits, *parts[:3], strict=True):
        weights = torch.tensor(theta, requires_grad=True)
        for _ in range(steps):
            loss = net.losses(weights, sx, sy).mean()
            weights = weights - RATE * torch.autograd.grad(loss, weights)[0]
        expected = net.logits(weights, qx).detach().numpy()
        np.testing.assert_allclose(row, expected, atol=1e-9)


def test_adaptation_takes_learnt_rates_in_place_of_its_own():
    theta = draw_theta(PLAIN)
    with_rates = np.concatenate([theta, np.full(RATES.dimension - RATES.weights, RATE)])
    parts = draw_tasks(2)[:3]
    plain = Adaptation(gradients_of(PLAIN)).logits(theta, *parts, steps=5, rate=RATE)
    learnt = Adaptation(gradients_of(RATES)).logits(with_rates, *parts, steps=5, rate=9)
    np.testing.assert_allclose(learnt, plain, atol=1e-12)


def test_meta_gradient_with_unknown_tensors_or_other_steps_is_refused():
    with pytest.raises(ValueError, match="no tensors"):
        MetaGradient(gradients_of(PLAIN), steps=1, rate=RATE, adapted=["last.weight"])
    with pytest.raises(
        ValueError, match="3 learnt rates for each tensor do not fit 2 steps"
    ):
        MetaGradient(gradients_of(RATES), steps=2, rate=RATE)


@pytest.mark.parametrize("sizes", [(5, 15), (5, 60), (5, 5), (1, 10), (10, 10)])
def test_adaptation_to_other_numbers_of_images_than_before_is_right(sizes):
    """Five images, then ten: buffers of another size must not be used."""
    net = conv4(filters=3)
    kernel = Adaptation(choose(net).make())
    torch_path = Adaptation(choose(net, enabled=False).make())
    rng = np.random.default_rng(0)
    theta = net.initial(rng)
    step = {"steps": 1, "rate": 0.1}
    for support, query in ((5, 10), sizes):
        xs = rng.random((1, support, 28, 28, 1), dtype=np.float32)
        xq = rng.random((1, query, 28, 28, 1), dtype=np.float32)
        ys = np.arange(support)[None] % 5
        logits = kernel.logits(theta, xs, ys, xq, **step)
        expected = torch_path.logits(theta, xs, ys, xq, **step)
        assert logits.shape == (1, query, 5)
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
