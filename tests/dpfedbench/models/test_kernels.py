"""Networks with hand-written passes: their description in the terms of dpkernels, and
their gradients beside torch's.
"""

import numpy as np
import pytest
import torch

from dpfedbench.models import cnn as cnn_module
from dpfedbench.models import conv4 as conv4_module
from dpfedbench.models.choose import choose
from dpfedbench.models.gradients import Gradients
from dpfedbench.models.kernels import find_passes
from dpfedbench.models.linear import LinearHead
from dpfedbench.models.zoo.lstm import LstmModel
from dpfedbench.training.mechanisms import make_accumulator
from dpkernels import networks
from dpsum.private_sum import PlainSum
from tests.dpsum.helpers import NO_NOISE, make_sum

from .nets import cnn, conv4, of

LENGTH = 10
WORDS = 23


def head(bias):
    def build():
        return LinearHead(inputs=(3, 3, 4), classes=5, bias=bias)

    return of(build, shape=(3, 3, 4), outputs=5)


def lstm(tied):
    model = LstmModel(width=6, tied=tied, layers=2)
    return model.net(input_shape=(LENGTH,), outputs=WORDS)


NETS = {
    "conv4": conv4(filters=6),
    "conv4 in colour": conv4(
        image_shape=(32, 36, 3), filters=6, normalisation="record"
    ),
    "cnn": cnn(),
    "cnn in colour": cnn(image_shape=(26, 29, 3), classes=7, pixel_mean=0.3),
    "linear head": head(True),
    "linear head without bias": head(False),
    "lstm": lstm(False),
    "tied lstm": lstm(True),
}
SUMS = [name for name in NETS if "lstm" in name or "linear" in name]


@pytest.mark.parametrize("name", NETS)
def test_description_has_the_layout_and_sizes_of_the_module(name):
    net = NETS[name]
    _, shape = find_passes(net, torch.float32)
    assert list(shape.tensors.items()) == list(net.shapes.items())
    assert shape.dimension == net.dimension
    assert shape.input_shape == net.input_shape
    assert shape.outputs == net.outputs
    assert shape.label_shape == getattr(net.module, "answers", ())


def test_constants_of_the_passes_are_those_of_the_modules():
    assert networks.NORMALISATION_EPSILON == conv4_module.NORMALISATION_EPSILON
    assert (networks.HIDDEN, networks.MAP) == (cnn_module.HIDDEN, cnn_module.MAP)


def test_a_subclass_of_a_module_has_no_passes():
    """It may compute something else."""

    class Other(LinearHead):
        pass

    net = of(lambda: Other(inputs=(3, 3, 4), classes=5, bias=True), (3, 3, 4), 5)
    assert find_passes(net, torch.float32) is None
    assert choose(net).name == "torch"


def draw_records(net, count=11):
    """Return float64 weights, records and labels; words repeat and some are unknown."""
    rng = np.random.default_rng(0)
    theta = net.initial(rng) + 0.1 * rng.standard_normal(net.dimension)
    if net.vocabulary:
        texts = rng.integers(0, 8, (count, LENGTH))
        return theta, texts, texts
    x = rng.standard_normal((count, *net.input_shape))
    return theta, x, rng.integers(0, net.outputs, count)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_sums_and_evaluations_equal_torchs(name, threshold):
    net = NETS[name]
    theta, x, y = draw_records(net)
    both = []
    for enabled in (True, False):
        gradients = choose(net, enabled=enabled, dtype=torch.float64).make()
        assert (gradients.name == "torch") is not enabled
        total = PlainSum(dimension=net.dimension)
        if threshold is not None:
            total = make_sum(net.dimension, threshold)
        losses, norms = gradients.add_record_gradients(
            theta, x, y, make_accumulator(total)
        )
        room = np.empty((4, net.dimension))
        summed = gradients.summed_record_gradients(theta, x, y, room)
        measured = gradients.evaluate(theta, x, y)
        both.append([losses, norms, total.release(NO_NOISE), summed, *measured])
    for values, expected in zip(*both, strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-6)


def test_products_of_tasks_without_passes_are_torchs():
    net = NETS["lstm"]
    theta, x, _ = draw_records(net, 4)
    thetas = np.stack([theta, 0.5 * theta])
    texts = np.stack([x, x[::-1]])
    direction = np.random.default_rng(1).standard_normal(thetas.shape)
    results = []
    for make in (
        choose(net, dtype=torch.float64).make,
        lambda: Gradients(net, dtype=torch.float64),
    ):
        gradients = make()
        slopes, products = np.empty((2, *thetas.shape))
        prepared = gradients.prepared(texts)
        for needed in (True, False):
            point = gradients.task_gradients(
                thetas, prepared, texts, slopes, products=needed
            )
            if needed or gradients.name == "lstm":
                point.product(direction, products)
            results.append((slopes.copy(), products.copy(), point.losses))
        np.testing.assert_allclose(
            gradients.logits(thetas, prepared)[0],
            net.logits(torch.from_numpy(theta), x).detach().numpy(),
            atol=1e-12,
        )
    for values in results[1:]:
        for value, expected in zip(values, results[0], strict=True):
            np.testing.assert_allclose(value, expected, atol=1e-11)
