"""The network of Adap DP-FL against torch's own layers."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpfedbench.errors import BenchError
from dpfedbench.models.cnn import Cnn

from .nets import cnn


def torch_layers(net, theta):
    layers = nn.Sequential(
        nn.Conv2d(net.input_shape[2], 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, net.outputs),
    )
    w = net.tensors(torch.from_numpy(theta))
    state = {
        "0.weight": w["conv1.weight"].permute(3, 2, 0, 1),
        "3.weight": w["conv2.weight"].permute(0, 3, 1, 2),
        "7.weight": w["fc1.weight"].view(32, 4, 4, 32).permute(0, 3, 1, 2).flatten(1),
        "9.weight": w["fc2.weight"],
    }
    state |= {
        f"{layer}.bias": w[f"{name}.bias"]
        for layer, name in ((0, "conv1"), (3, "conv2"), (7, "fc1"), (9, "fc2"))
    }
    layers.load_state_dict(state)
    return layers


@pytest.mark.parametrize("net", [cnn(), cnn(image_shape=(26, 29, 3), classes=7)])
def test_logits_equal_those_of_torch_layers(net):
    rng = np.random.default_rng(0)
    theta, images = (
        net.initial(rng),
        torch.from_numpy(rng.random((5, *net.input_shape), dtype=np.float32)),
    )
    with torch.no_grad():
        expected = torch_layers(net, theta)(images.permute(0, 3, 1, 2))
        torch.testing.assert_close(
            net.logits(torch.from_numpy(theta), images), expected, rtol=1e-5, atol=1e-6
        )


def test_dimension_is_that_of_the_paper():
    assert cnn().dimension == 26_010


def test_initial_weights_are_distributed_as_those_of_torch():
    net = cnn()
    theta = net.initial(np.random.default_rng(3))
    assert theta.dtype == np.float32
    for name, tensor in net.tensors(torch.from_numpy(theta)).items():
        inputs = {"conv1": 64, "conv2": 256, "fc1": 512, "fc2": 32}[name.split(".")[0]]
        assert tensor.abs().max() <= 1 / math.sqrt(inputs)
        if tensor.numel() > 300:
            assert tensor.std().item() == pytest.approx(
                1 / math.sqrt(3 * inputs), rel=0.1
            )


def test_named_tensors_round_trip_and_refuse_another_net():
    net = cnn()
    theta = net.initial(np.random.default_rng(0))
    tensors = net.tensors(torch.from_numpy(theta))
    assert np.array_equal(net.flatten(tensors), theta)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == net.shapes
    with pytest.raises(BenchError, match="do not fit"):
        cnn(classes=9).flatten(tensors)


@pytest.mark.parametrize("side", [26, 27, 28, 29])
def test_sides_that_fit(side):
    net = cnn(image_shape=(side, side, 1))
    theta = torch.from_numpy(net.initial(np.random.default_rng(0)))
    assert net.logits(theta, torch.zeros(1, side, side, 1)).shape == (1, 10)


@pytest.mark.parametrize(
    "change",
    [
        {"image_shape": (25, 28, 1)},
        {"image_shape": (28, 30, 1)},
        {"image_shape": (28, 28, 0)},
        {"classes": 1},
    ],
)
def test_impossible_shapes_are_refused(change):
    with pytest.raises(BenchError):
        Cnn(**change)
