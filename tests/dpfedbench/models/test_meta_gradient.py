"""Meta-gradients and adaptation against learn2learn, an own graph, and by hand."""

import warnings
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.models.kernel_gradients import KernelGradients
from dpfedbench.models.meta_gradient import Adaptation, MetaGradient

from .nets import KERNELS, PATHS, cnn, conv4, gradients_by

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


def draw_tasks(seed=1, count=2, support=5, query=10, dtype=np.float64):
    """Return support and query images [count, n, ...] and labels: sx, sy, qx, qy."""
    rng = np.random.default_rng(seed)
    shape = (count, support + query, 28, 28, 1)
    x = (rng.random(shape) * (rng.random(shape) > 0.6)).astype(dtype)
    y = np.tile(np.arange(support + query) % 5, (count, 1))
    return x[:, :support], y[:, :support], x[:, support:], y[:, support:]


def draw_theta(net):
    """Return weights with a head that is not zero, and rates that differ."""
    rng = np.random.default_rng(0)
    theta = net.initial(rng).astype(np.float64)
    theta[: net.weights] += 0.05 * rng.normal(size=net.weights)
    theta[net.weights :] *= rng.uniform(0.2, 2, len(theta) - net.weights)
    return theta


def contributions(gradients, theta, parts, *, weights=None, steps=STEPS, **options):
    """Return the contributions [tasks, d] of meta-gradients at `theta`."""
    size = (len(parts[0]), gradients.net.dimension)
    out = torch.empty(size, dtype=gradients.dtype, device=gradients.device)
    meta = MetaGradient(gradients, steps=steps, rate=RATE, **options)
    losses = meta.contribution(theta, *parts, out, weights)
    assert losses.shape == (len(out),)
    return out.cpu().numpy()


def graph_gradients(
    net, theta, parts, *, order, steps=STEPS, weights=None, adapted=None
):
    """Return the gradients of tasks by a graph across the steps."""
    step_weights = np.eye(steps)[-1] if weights is None else weights
    sizes = torch.tensor(net.sizes)
    moves = [adapted is None or name in adapted for name in net.tensor_names]
    leaf = torch.from_numpy(theta).requires_grad_()
    rates = RATE * torch.ones(steps, len(sizes), dtype=torch.float64)
    if net.dimension > net.weights:
        rates = leaf[net.weights :].view(steps, -1)
    rates = rates * torch.tensor(moves)
    gradients = []
    for sx, sy, qx, qy in zip(*parts, strict=True):
        current = leaf[: net.weights]
        total = 0.0
        for step in range(steps):
            loss = net.losses(current, sx, sy).mean()
            (slope,) = torch.autograd.grad(loss, current, create_graph=True)
            if order == 1:
                slope = slope.detach()
            current = current - torch.repeat_interleave(rates[step], sizes) * slope
            total = total + step_weights[step] * net.losses(current, qx, qy).mean()
        gradients += torch.autograd.grad(total, leaf, retain_graph=True)
    return torch.stack(gradients).numpy()


def learn2learn_gradients(net, theta, parts, *, order, steps):
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

    gradients = []
    for sx, sy, qx, qy in zip(*map(torch.tensor, parts), strict=True):
        model = FlatConv4()
        maml = learn2learn.algorithms.MAML(model, lr=RATE, first_order=order == 1)
        clone = maml.clone()
        for _ in range(steps):
            clone.adapt(functional.cross_entropy(clone(sx), sy))
        functional.cross_entropy(clone(qx), qy).backward()
        gradients.append(model.theta.grad.numpy())
    return np.stack(gradients)


def assert_rows_close(rows, expected, net):
    """Compare weights and rates, each by its own scale: rates are few."""
    for row, expected_row in zip(rows, expected, strict=True):
        for part in (slice(net.weights), slice(net.weights, None)):
            error = 1e-8 * np.abs(expected_row[part]).max(initial=0)
            np.testing.assert_allclose(row[part], expected_row[part], atol=error)


@KERNELS
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("steps", [1, 5])
def test_contributions_equal_learn2learn(steps, order, path):
    theta = draw_theta(PLAIN)
    parts = draw_tasks()
    options = {"order": order, "steps": steps}
    rows = contributions(gradients_by(path, PLAIN), theta, parts, **options)
    expected = learn2learn_gradients(PLAIN, theta, parts, **options)
    assert_rows_close(rows, expected, PLAIN)


@PATHS
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["last loss", "all losses"])
@pytest.mark.parametrize("name", NETS)
def test_contributions_equal_a_graph_across_the_steps(name, weights, order, path):
    if name == "cnn" and path == "kernels":
        pytest.skip("the CNN's kernel has no double precision")
    net = NETS[name]
    theta = draw_theta(net)
    parts = draw_tasks()
    options = {"order": order, "weights": weights}
    rows = contributions(gradients_by(path, net), theta, parts, **options)
    assert_rows_close(rows, graph_gradients(net, theta, parts, **options), net)


@KERNELS
@pytest.mark.parametrize("net", [PLAIN, RATES])
def test_tensors_that_do_not_adapt_stay_and_still_get_a_gradient(net, path):
    theta = draw_theta(net)
    parts = draw_tasks()
    gradients = gradients_by(path, net)
    rows = contributions(gradients, theta, parts, adapted=net.head)
    expected = graph_gradients(net, theta, parts, order=2, adapted=net.head)
    body = net.weights - sum(net.sizes[-2:])
    assert np.abs(rows[:, :body]).max() > 0
    rows = rows[:, : net.weights]
    np.testing.assert_allclose(rows, expected[:, : net.weights], atol=1e-9)
    adaptation = Adaptation(gradients, adapted=net.head)
    adapted = adaptation.adapt(theta, *parts[:2], steps=2, rate=RATE).numpy()
    assert (adapted[:, :body] == theta[:body]).all()
    assert (adapted[:, body:] != theta[body : net.weights]).any()


@KERNELS
def test_contribution_does_not_depend_on_other_tasks(path):
    theta = PLAIN.initial(np.random.default_rng(3))
    parts = draw_tasks(count=3, dtype=np.float32)
    gradients = gradients_by(path, PLAIN, torch.float32)
    whole = contributions(gradients, theta, parts)
    for i in (2, 0, 1):
        task = [part[i : i + 1] for part in parts]
        assert np.array_equal(contributions(gradients, theta, task), whole[i : i + 1])


@pytest.mark.parametrize(
    ("order", "steps", "adapted"),
    [(2, 3, None), (2, 1, None), (1, 3, None), (2, 2, PLAIN.head)],
)
def test_contributions_in_one_call_have_the_bits_of_step_by_step(order, steps, adapted):
    """Query sets have several sizes, so memory is used again."""
    net = conv4(filters=16)
    theta = draw_theta(net).astype(np.float32)
    options = {"steps": steps, "order": order, "adapted": adapted}

    def results(through_steps):
        gradients = gradients_by("kernels", net, torch.float32)
        rows = []
        with mock.patch.object(
            KernelGradients, "through_steps", autospec=True, side_effect=through_steps
        ) as watched:
            for seed, query in enumerate((10, 5, 10)):
                parts = draw_tasks(seed, count=3, query=query, dtype=np.float32)
                rows.append(contributions(gradients, theta, parts, **options))
        assert watched.call_count == 3
        return np.stack(rows)

    in_one_call = results(KernelGradients.through_steps)
    assert np.array_equal(in_one_call, results(lambda *_, **__: None))


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
        ([1], lambda y: y[..., None]),
        ([3], lambda y: y[..., None]),
    ],
)
def test_tasks_whose_parts_do_not_fit_are_refused(path, changed, change):
    parts = draw_tasks(count=3)
    parts = [change(part) if i in changed else part for i, part in enumerate(parts)]
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        contributions(gradients_by(path, PLAIN), draw_theta(PLAIN), parts)


def descended(net, theta, sx, sy, steps):
    """Return weights after steps of plain gradient descent."""
    weights = torch.tensor(theta)
    for _ in range(steps):
        weights.requires_grad_()
        (slope,) = torch.autograd.grad(net.losses(weights, sx, sy).mean(), weights)
        weights = (weights - RATE * slope).detach()
    return weights


def test_first_order_reads_the_support_through_the_adapted_weights_alone():
    """Property 11: it is the query gradient at the adapted weights."""
    theta = draw_theta(PLAIN)
    parts = draw_tasks(4)
    sx, sy, qx, qy = (part[0] for part in parts)
    adapted = descended(PLAIN, theta, sx, sy, steps=1).requires_grad_()
    (expected,) = torch.autograd.grad(PLAIN.losses(adapted, qx, qy).mean(), adapted)
    gradients = gradients_by("kernels", PLAIN)
    first = contributions(gradients, theta, parts, steps=1, order=1)[0]
    np.testing.assert_allclose(first, expected.numpy(), atol=1e-12)
    second = contributions(gradients, theta, parts, steps=1, order=2)[0]
    assert np.abs(second - expected.numpy()).max() > 1e-4


@KERNELS
@pytest.mark.parametrize("net", [PLAIN, conv4(filters=6, normalisation="record")])
@pytest.mark.parametrize("steps", [0, 2])
def test_adaptation_is_plain_gradient_descent(net, path, steps):
    """Tasks of other sizes follow: buffers of the sizes before must not be used."""
    theta = draw_theta(net)
    adaptation = Adaptation(gradients_by(path, net))
    for support, query in ((5, 10), (5, 30), (5, 5), (1, 10), (10, 10)):
        parts = draw_tasks(5, support=support, query=query)[:3]
        logits = adaptation.logits(theta, *parts, steps=steps, rate=RATE)
        for row, sx, sy, qx in zip(logits, *parts, strict=True):
            expected = net.logits(descended(net, theta, sx, sy, steps), qx)
            np.testing.assert_allclose(row, expected.numpy(), atol=1e-9)


def test_adaptation_takes_learnt_rates_in_place_of_its_own():
    theta = draw_theta(PLAIN)
    with_rates = np.concatenate([theta, np.full(RATES.dimension - RATES.weights, RATE)])
    parts = draw_tasks(2)[:3]
    plain = Adaptation(gradients_by("kernels", PLAIN))
    learnt = Adaptation(gradients_by("kernels", RATES))
    expected = plain.logits(theta, *parts, steps=5, rate=RATE)
    logits = learnt.logits(with_rates, *parts, steps=5, rate=9)
    np.testing.assert_allclose(logits, expected, atol=1e-12)
