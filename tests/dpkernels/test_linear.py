"""The linear head's clipped sum against torch's single gradients, clipped and added up
one by one.
"""

import functools
import math

import numpy as np
import pytest
import torch

from dpfedbench.models.choose import choose
from dpfedbench.models.linear import LinearHead
from dpfedbench.models.net import Net
from dpfedbench.models.torch_gradients import TorchGradients
from dpkernels.linear import LinearHeadGradients
from dpsum.private_sum import PlainSum, PrivateSum

SHAPE, CLASSES = (3, 3, 4), 5


def net_of(**more):
    return Net(
        functools.partial(LinearHead, inputs=SHAPE, classes=CLASSES, **more),
        input_shape=SHAPE,
        outputs=CLASSES,
    )


NET, BARE = net_of(), net_of(bias=False)


def given(count=30, net=NET):
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(net.dimension).astype(np.float32)
    return (
        theta,
        rng.standard_normal((count, *SHAPE)).astype(np.float32),
        rng.integers(0, CLASSES, count),
    )


class Silent:
    """In place of a random generator: no noise."""

    def standard_normal(self, dimension):
        return np.zeros(dimension)


@pytest.mark.parametrize("threshold", [0.5, 3.0, math.inf])
@pytest.mark.parametrize("net", [NET, BARE], ids=["constants", "none"])
def test_the_sum_is_that_of_single_gradients(net, threshold):
    theta, x, y = given(net=net)
    x[7] = math.nan  # counts as zero
    rows = torch.empty((len(x), net.dimension))
    expected = TorchGradients(net).each(theta, x, y, rows)
    norms = rows.double().norm(dim=1)
    weights = torch.clamp(threshold / norms, max=1.0)
    wanted = (weights[:, None] * rows.double())[norms.isfinite()].sum(dim=0)
    sum_ = PlainSum(dimension=net.dimension)
    if threshold < math.inf:
        sum_ = PrivateSum(
            dimension=net.dimension, threshold=threshold, noise_multiplier=1.0
        )
    found, own = LinearHeadGradients(net).add_each(theta, x, y, sum_)
    np.testing.assert_allclose(own, norms, rtol=1e-5)
    assert sum_.non_finite == 1 and sum_.count == 30
    torch.testing.assert_close(
        torch.from_numpy(sum_.release(Silent())), wanted, rtol=1e-5, atol=1e-5
    )
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            np.delete(mine, 7), np.delete(theirs, 7), rtol=1e-5, atol=1e-6
        )


def test_no_record_moves_the_sum_by_more_than_the_threshold():
    theta, x, y = given(1)
    for scale in (1e-30, 1.0, 1e15):
        sum_ = PrivateSum(dimension=NET.dimension, threshold=0.3, noise_multiplier=1.0)
        LinearHeadGradients(NET).add_each(theta, x * np.float32(scale), y, sum_)
        assert np.linalg.norm(sum_.release(Silent())) <= 0.3 * (1 + 1e-9)


@pytest.mark.parametrize("net", [NET, BARE], ids=["constants", "none"])
def test_it_is_chosen_and_measures_as_torch_does(net):
    theta, x, y = given(net=net)
    chosen = choose(net)
    assert chosen.name == "linear-head"
    for mine, theirs in zip(
        chosen.make().evaluate(theta, x, y),
        TorchGradients(net).evaluate(theta, x, y),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize("net", [NET, BARE], ids=["constants", "none"])
def test_the_whole_sum_is_that_of_torch_and_a_lot_may_be_empty(net):
    """`added` in one piece; and the lot of a small client, in which nobody may be."""
    theta, x, y = given(net=net)
    room = torch.empty((8, net.dimension))
    wanted = TorchGradients(net).added(theta, x, y, room)
    np.testing.assert_allclose(
        LinearHeadGradients(net).added(theta, x, y, room), wanted, rtol=1e-4, atol=1e-5
    )
    sum_ = PrivateSum(dimension=net.dimension, threshold=0.3, noise_multiplier=1.0)
    _, norms = LinearHeadGradients(net).add_each(theta, x[:0], y[:0], sum_)
    assert norms.shape == (0,) and not sum_.release(Silent()).any()
