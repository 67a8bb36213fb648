"""Meta-gradients against learn2learn, an independent implementation, in float64."""

import warnings

import numpy as np
import pytest
import torch
from dpfedbench.federation.maml import FusedAdaptation, FusedMaml, autodiff_contributions
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.federation.composition import Maml
from dpfedbench.models.conv4 import Conv4

NET = Conv4(image_shape=(28, 28, 1), filters=8, ways=5)


class FlatNet(torch.nn.Module):
    """Conv-4 as learn2learn wants it: a module with one parameter, the flat vector."""

    def __init__(self, theta):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.tensor(theta))

    def forward(self, x):
        return NET.forward(self.theta, x)


def task(rng, support=5, query=10):
    images = rng.random((support + query, 28, 28, 1)) * (rng.random((support + query, 28, 28, 1)) > 0.6)
    labels = np.arange(support + query) % 5
    return images[:support], labels[:support], images[support:], labels[support:]


def learn2learn_gradient(theta, maml, sx, sy, qx, qy):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # learn2learn imports gym, which warns about its age
        l2l = pytest.importorskip("learn2learn", reason="not installed: uv sync --group reference (C compiler)")
    learner = l2l.algorithms.MAML(FlatNet(theta), lr=maml.inner_rate, first_order=maml.order == 1)
    clone = learner.clone()
    for _ in range(maml.inner_steps):
        clone.adapt(functional.cross_entropy(clone(torch.tensor(sx)), torch.tensor(sy)))
    functional.cross_entropy(clone(torch.tensor(qx)), torch.tensor(qy)).backward()
    return learner.module.theta.grad.numpy()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("steps", [1, 5])
def test_contributions_equal_learn2learn(steps, order):
    rng = np.random.default_rng(2)
    maml = Maml(inner_steps=steps, inner_rate=0.1, order=order)
    theta = NET.initial(rng).astype(np.float64) + 0.05 * rng.normal(size=NET.dimension)
    parts = task(rng)
    expected = learn2learn_gradient(theta, maml, *parts)
    out = np.empty(NET.dimension)
    fused = FusedMaml(NET, maml, support=5, query=10, dtype=np.float64)
    fused.contribution(theta, *parts, out)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(out, expected, atol=1e-8 * scale)
    autodiff, _, _ = autodiff_contributions(NET, maml, torch.tensor(theta), *(torch.tensor(p)[None] for p in parts))
    np.testing.assert_allclose(autodiff[0].numpy(), expected, atol=1e-8 * scale)


def test_a_contribution_does_not_depend_on_what_was_computed_before():
    rng = np.random.default_rng(3)
    maml = Maml(inner_steps=3, inner_rate=0.1, order=2)
    theta = NET.initial(rng)
    first, second = (tuple(p.astype(np.float32) if p.dtype == float else p for p in task(rng)) for _ in range(2))
    used = FusedMaml(NET, maml, support=5, query=10)
    a, b = np.empty((2, NET.dimension), np.float32)
    used.contribution(theta, *second, a)
    used.contribution(theta, *first, a)
    FusedMaml(NET, maml, support=5, query=10).contribution(theta, *first, b)
    assert np.array_equal(a, b)


def test_first_order_reads_the_support_through_the_adapted_weights_alone():
    """Property 11. A support batch that differs but adapts to the same weights gives the same contribution.

    Normalisation over the batch makes it independent of the order of the examples, so permuting the support set
    changes the inputs and leaves the adapted weights as they are, up to rounding. The second-order contribution
    must on the other hand see support-dependent curvature, which the second half asserts.
    """
    rng = np.random.default_rng(4)
    theta = NET.initial(rng).astype(np.float64)
    sx, sy, qx, qy = task(rng)
    maml = Maml(inner_steps=1, inner_rate=0.1, order=1)
    out, direct = np.empty((2, NET.dimension))
    FusedMaml(NET, maml, support=5, query=10, dtype=np.float64).contribution(theta, sx, sy, qx, qy, out)

    weights = torch.tensor(theta, requires_grad=True)
    inner = functional.cross_entropy(NET.forward(weights, torch.tensor(sx)), torch.tensor(sy))
    adapted = theta - 0.1 * torch.autograd.grad(inner, weights)[0].numpy()
    # The query gradient at the adapted weights, from any support: it equals the first-order contribution ...
    from dpfedbench.models.conv4_passes import Images
    from dpfedbench.models.fused_conv4 import FusedConv4

    net, images = FusedConv4(NET, 10, np.float64), Images(qx)
    at = net.evaluation()
    net.loss(adapted, images, qy, at)
    net.gradient(images, at, direct)
    np.testing.assert_allclose(out, direct, atol=1e-12)
    # ... and not the second-order one, which carries the support's Hessian.
    second = Maml(inner_steps=1, inner_rate=0.1, order=2)
    FusedMaml(NET, second, support=5, query=10, dtype=np.float64).contribution(theta, sx, sy, qx, qy, out)
    assert np.abs(out - direct).max() > 1e-4


def test_adaptation_without_steps_is_the_plain_network():
    rng = np.random.default_rng(5)
    theta = NET.initial(rng).astype(np.float64)
    sx, sy, qx, _ = task(rng)
    logits = FusedAdaptation(NET, support=5, query=10, dtype=np.float64).logits(theta, sx, sy, qx, steps=0, rate=0.1)
    np.testing.assert_allclose(logits, NET.forward(torch.tensor(theta), torch.tensor(qx)).numpy(), atol=1e-10)


@pytest.mark.parametrize("change", [{"inner_steps": 0}, {"inner_rate": 0.0}, {"order": 3}])
def test_impossible_updates_are_refused(change):
    with pytest.raises(BenchError):
        Maml(**({"inner_steps": 1, "inner_rate": 0.1, "order": 1} | change))
