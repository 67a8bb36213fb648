"""Meta-gradients and adaptation against learn2learn, a graph across the steps, and by
hand, in float64.
"""

import itertools
import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.models.choose import choose
from dpfedbench.models.meta_gradient import Adaptation, MetaGradient
from dpkernels.batch_conv4 import BatchConv4

from .nets import cnn, conv4

STEPS, RATE = 3, 0.1
PLAIN, RATES = conv4(filters=6), conv4(filters=6, rates=(STEPS, RATE))
WEIGHTS = np.array([0.2, 0.1, 0.7])
KERNELS = pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])


def tasks(seed=1, count=2, support=5, query=10):
    rng = np.random.default_rng(seed)
    shape = (count, support + query, 28, 28, 1)
    x, y = (
        rng.random(shape) * (rng.random(shape) > 0.6),
        np.tile(np.arange(support + query) % 5, (count, 1)),
    )
    return x[:, :support], y[:, :support], x[:, support:], y[:, support:]


def drawn(net, seed=0):
    """Weights with a head that is not zero, and rates that differ."""
    rng = np.random.default_rng(seed)
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


def across_the_steps(
    net, theta, sx, sy, qx, qy, *, order, steps=STEPS, weights=None, adapted=None
):
    """One task's gradient by a graph across the steps."""
    counted = np.eye(steps)[-1] if weights is None else weights
    own = {
        name: tensor.double()
        for name, tensor in net.tensors(torch.from_numpy(theta)).items()
    }
    leaves = {
        name: tensor.detach().clone().requires_grad_() for name, tensor in own.items()
    }
    here, total = {name: leaf for name, leaf in leaves.items() if name != "rates"}, 0.0

    def loss(named, x, y):
        flat = torch.cat([tensor.reshape(-1) for tensor in named.values()])
        return net.losses(flat, x, y).mean()

    for k in range(steps):
        slopes = torch.autograd.grad(
            loss(here, sx, sy), list(here.values()), create_graph=True
        )
        moved = {}
        for place, ((name, tensor), slope) in enumerate(
            zip(here.items(), slopes, strict=True)
        ):
            rate = leaves["rates"][k, place] if "rates" in leaves else RATE
            rate = rate * (adapted is None or name in adapted)
            moved[name] = tensor - rate * (slope if order == 2 else slope.detach())
        here = moved
        total = total + counted[k] * loss(here, qx, qy)
    found = torch.autograd.grad(total, list(leaves.values()))
    return torch.cat([part.reshape(-1) for part in found]).numpy()


def learn2learn_gradient(net, theta, sx, sy, qx, qy, *, order, steps):
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # learn2learn imports gym, which warns about its age
        l2l = pytest.importorskip(
            "learn2learn",
            reason="not installed: uv sync --group reference (C compiler)",
        )

    class Flat(torch.nn.Module):
        """Conv-4 as learn2learn wants it: a module with one parameter, the flat
        vector.
        """

        def __init__(self):
            super().__init__()
            self.theta = torch.nn.Parameter(torch.tensor(theta))

        def forward(self, x):
            return net.logits(self.theta, x)

    learner = l2l.algorithms.MAML(Flat(), lr=RATE, first_order=order == 1)
    clone = learner.clone()
    for _ in range(steps):
        clone.adapt(functional.cross_entropy(clone(torch.tensor(sx)), torch.tensor(sy)))
    functional.cross_entropy(clone(torch.tensor(qx)), torch.tensor(qy)).backward()
    return learner.module.theta.grad.numpy()


def assert_rows_close(rows, wanted, net):
    for row, expected in zip(rows, wanted, strict=True):
        for part in (
            slice(None, net.weights),
            slice(net.weights, None),
        ):  # of the rates too, which are few
            if expected[part].size:
                np.testing.assert_allclose(
                    row[part], expected[part], atol=1e-8 * np.abs(expected[part]).max()
                )


@KERNELS
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("steps", [1, 5])
def test_contributions_equal_learn2learn(steps, order, kernels):
    theta, parts = drawn(PLAIN), tasks()
    wanted = [
        learn2learn_gradient(PLAIN, theta, *task, order=order, steps=steps)
        for task in zip(*parts, strict=True)
    ]
    assert_rows_close(
        contributions(PLAIN, theta, parts, kernels=kernels, order=order, steps=steps),
        wanted,
        PLAIN,
    )


@KERNELS
@pytest.mark.parametrize(
    ("net", "weights", "order"),
    list(itertools.product((RATES, PLAIN), (None, WEIGHTS), (1, 2))),
)
def test_contributions_equal_a_graph_across_the_steps(net, weights, order, kernels):
    theta, parts = drawn(net), tasks()
    wanted = [
        across_the_steps(net, theta, *task, order=order, weights=weights)
        for task in zip(*parts, strict=True)
    ]
    assert_rows_close(
        contributions(net, theta, parts, kernels=kernels, order=order, weights=weights),
        wanted,
        net,
    )


@pytest.mark.parametrize(
    "net",
    [conv4(filters=6, normalisation="record"), cnn()],
    ids=["conv4 by record", "cnn"],
)
def test_networks_without_a_kernel_for_tasks_are_differentiated_twice_as_well(net):
    theta, parts = drawn(net), tasks()
    wanted = [
        across_the_steps(net, theta, *task, order=2)
        for task in zip(*parts, strict=True)
    ]
    kernels = (
        net.module.__class__.__name__ == "Conv4"
    )  # the CNN's kernel has no double precision
    assert_rows_close(contributions(net, theta, parts, kernels=kernels), wanted, net)


@KERNELS
@pytest.mark.parametrize("net", [PLAIN, RATES])
def test_tensors_that_do_not_adapt_stay_and_still_get_a_gradient(net, kernels):
    theta, parts = drawn(net), tasks()
    found = contributions(net, theta, parts, kernels=kernels, adapted=net.head)
    wanted = [
        across_the_steps(net, theta, *task, order=2, adapted=net.head)
        for task in zip(*parts, strict=True)
    ]
    body = net.weights - sum(net.sizes[-2:])
    assert np.abs(found[:, :body]).max() > 0
    np.testing.assert_allclose(
        found[:, : net.weights], np.stack(wanted)[:, : net.weights], atol=1e-9
    )
    adapted = Adaptation(gradients_of(net, kernels), adapted=net.head).adapt(
        theta, *parts[:2], steps=2, rate=RATE
    )
    assert (adapted[:, :body].numpy() == theta[:body]).all()
    assert (adapted[:, body:].numpy() != theta[body : net.weights]).any()


def test_tensors_that_are_not_there_cannot_adapt():
    with pytest.raises(ValueError, match="no tensors"):
        MetaGradient(gradients_of(PLAIN), steps=1, rate=RATE, adapted=["last.weight"])


@KERNELS
def test_a_contribution_does_not_depend_on_the_tasks_beside_and_before_it(kernels):
    theta, parts = PLAIN.initial(np.random.default_rng(3)), tasks(count=3)
    parts = tuple(
        part.astype(np.float32) if part.dtype == float else part for part in parts
    )
    meta = MetaGradient(
        gradients_of(PLAIN, kernels, torch.float32), steps=STEPS, rate=RATE
    )
    together, alone = np.empty((2, 3, PLAIN.dimension), np.float32)
    meta.contribution(theta, *parts, together)
    for i in (2, 0, 1):
        some = slice(i, i + 1)
        meta.contribution(theta, *(part[some] for part in parts), alone[some])
    assert np.array_equal(together, alone)


@pytest.mark.parametrize(
    ("order", "steps", "adapted"),
    [(2, 3, None), (2, 1, None), (1, 3, None), (2, 2, PLAIN.head)],
)
def test_all_steps_in_one_call_have_the_bits_of_step_by_step(
    order, steps, adapted, monkeypatch
):
    """In turns over query sets of several sizes, so that memory is used again."""
    net = conv4(filters=16)
    theta, in_one_call = drawn(net).astype(np.float32), BatchConv4.through_steps
    asked = [
        tasks(seed, count=3, query=query) for seed, query in enumerate((10, 5, 10))
    ]

    def found():
        meta = MetaGradient(
            gradients_of(net, dtype=torch.float32),
            steps=steps,
            rate=RATE,
            order=order,
            adapted=adapted,
        )
        for sx, sy, qx, qy in asked:
            out = np.empty((3, net.dimension), np.float32)
            measures = meta.contribution(
                theta, sx.astype(np.float32), sy, qx.astype(np.float32), qy, out
            )
            yield from (out, *measures)

    calls = []
    monkeypatch.setattr(
        BatchConv4,
        "through_steps",
        lambda *given, **how: calls.append(1) or in_one_call(*given, **how),
    )
    together = list(found())
    monkeypatch.setattr(BatchConv4, "through_steps", lambda *given, **how: None)
    assert len(calls) == 3
    for one, other in zip(together, found(), strict=True):
        assert np.array_equal(one, other)


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
    parts = list(tasks(count=3))
    for part in changed:
        parts[part] = change(parts[part])
    with pytest.raises((ValueError, IndexError)):
        contributions(PLAIN, drawn(PLAIN), parts, kernels=kernels)


@pytest.mark.parametrize("part", [1, 3])
def test_labels_that_are_no_matrix_are_refused(part):
    parts = list(tasks(count=3))
    parts[part] = parts[part][..., None]
    with pytest.raises(ValueError, match="images need as many labels"):
        contributions(PLAIN, drawn(PLAIN), parts)


@pytest.mark.parametrize("order", [1, 2])
def test_equal_rates_give_the_weights_what_one_rate_gives(order):
    theta, parts = drawn(PLAIN), tasks(2)
    with_rates = np.concatenate([theta, np.full(RATES.dimension - RATES.weights, RATE)])
    wanted, found = (
        contributions(PLAIN, theta, parts, order=order),
        contributions(RATES, with_rates, parts, order=order),
    )
    np.testing.assert_allclose(
        found[:, : RATES.weights], wanted, atol=1e-12 * np.abs(wanted).max()
    )
    logits = [
        Adaptation(gradients_of(net)).logits(start, *parts[:3], steps=5, rate=RATE)
        for net, start in ((PLAIN, theta), (RATES, with_rates))
    ]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-12)


def test_first_order_reads_the_support_through_the_adapted_weights_alone():
    """Property 11: the contribution is the query gradient at the adapted weights, which
    second order's is not.
    """
    theta, parts = drawn(PLAIN), tasks(4)
    sx, sy, qx, qy = (part[0] for part in parts)
    weights = torch.tensor(theta, requires_grad=True)
    inner = PLAIN.losses(weights, sx, sy).mean()
    adapted = (
        (weights - RATE * torch.autograd.grad(inner, weights)[0])
        .detach()
        .requires_grad_()
    )
    (direct,) = torch.autograd.grad(PLAIN.losses(adapted, qx, qy).mean(), adapted)
    np.testing.assert_allclose(
        contributions(PLAIN, theta, parts, steps=1, order=1)[0],
        direct.numpy(),
        atol=1e-12,
    )
    second = contributions(PLAIN, theta, parts, steps=1, order=2)[0]
    assert np.abs(second - direct.numpy()).max() > 1e-4


@KERNELS
@pytest.mark.parametrize("net", [PLAIN, conv4(filters=6, normalisation="record")])
def test_adaptation_is_plain_gradient_descent(net, kernels):
    theta, parts = drawn(net), tasks(5)
    adaptation = Adaptation(gradients_of(net, kernels))
    for steps in (0, 2):
        found = adaptation.logits(theta, *parts[:3], steps=steps, rate=RATE)
        for row, sx, sy, qx in zip(found, *parts[:3], strict=True):
            here = torch.tensor(theta, requires_grad=True)
            for _ in range(steps):
                here = (
                    here
                    - RATE
                    * torch.autograd.grad(net.losses(here, sx, sy).mean(), here)[0]
                )
            np.testing.assert_allclose(
                row, net.logits(here, qx).detach().numpy(), atol=1e-9
            )


def test_a_rate_of_zero_leaves_its_tensor_alone():
    """One step with all rates at zero is no adaptation."""
    net = conv4(filters=6, rates=(1, RATE))
    parts, theta = tasks(3), drawn(net)
    theta[net.weights :] = 0
    adapt = Adaptation(gradients_of(net))
    given = adapt.logits(theta, *parts[:3], steps=1, rate=9.0)
    assert np.array_equal(given, adapt.logits(theta, *parts[:3], steps=0, rate=9.0))


def test_rates_for_another_number_of_steps_are_refused():
    with pytest.raises(ValueError, match="3 learnt rates a tensor are not for 2 steps"):
        MetaGradient(gradients_of(RATES), steps=2, rate=RATE)


@pytest.mark.parametrize("sizes", [(5, 15), (5, 60), (5, 5), (1, 10), (10, 10)])
def test_adaptation_to_other_numbers_of_images_than_before_is_right(sizes):
    """Five and ten images, then others: buffers that no longer fitted were read and
    written beyond their end.
    """
    net = conv4(filters=3)
    kernel, plain = (Adaptation(choose(net, enabled=on).make()) for on in (True, False))
    rng = np.random.default_rng(0)
    theta = net.initial(rng)
    for support, query in ((5, 10), sizes):
        xs, xq = (
            rng.random((1, count, 28, 28, 1), dtype=np.float32)
            for count in (support, query)
        )
        ys = np.arange(support)[None] % 5
        found, wanted = (
            each.logits(theta, xs, ys, xq, steps=1, rate=0.1)
            for each in (kernel, plain)
        )
        assert found.shape == (1, query, 5)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="records need as many labels"):
        kernel.logits(
            theta, xs, np.zeros((1, sizes[0] + 1), np.int64), xq, steps=1, rate=0.1
        )
    with pytest.raises(ValueError, match="records must be"):
        kernel.logits(theta, xs[..., :27, :], ys, xq, steps=1, rate=0.1)
