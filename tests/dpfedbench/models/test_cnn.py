"""The network of Adap DP-FL against torch's own layers."""

import math

import numpy as np
import pytest
import torch
from torch import nn

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
    weights = net.tensors(torch.from_numpy(theta))
    hidden = weights["fc1.weight"].view(32, 4, 4, 32).permute(0, 3, 1, 2)
    state = {
        "0.weight": weights["conv1.weight"].permute(3, 2, 0, 1),
        "3.weight": weights["conv2.weight"].permute(0, 3, 1, 2),
        "7.weight": hidden.flatten(1),
        "9.weight": weights["fc2.weight"],
        "0.bias": weights["conv1.bias"],
        "3.bias": weights["conv2.bias"],
        "7.bias": weights["fc1.bias"],
        "9.bias": weights["fc2.bias"],
    }
    layers.load_state_dict(state)
    return layers


@pytest.mark.parametrize("net", [cnn(), cnn((26, 29, 3), classes=7), cnn((29, 27, 1))])
def test_cnn_logits_equal_those_of_torch_layers(net):
    rng = np.random.default_rng(0)
    theta = net.initial(rng)
    images = torch.from_numpy(rng.random((5, *net.input_shape), dtype=np.float32))
    with torch.no_grad():
        expected = torch_layers(net, theta)(images.permute(0, 3, 1, 2))
        logits = net.logits(torch.from_numpy(theta), images)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)


def test_cnn_has_the_papers_dimension_and_torchs_initial_weights():
    net = cnn()
    assert net.dimension == 26_010
    theta = net.initial(np.random.default_rng(3))
    assert theta.dtype == np.float32
    fan_in = {"conv1": 64, "conv2": 256, "fc1": 512, "fc2": 32}
    for name, tensor in net.tensors(torch.from_numpy(theta)).items():
        inputs = fan_in[name.split(".")[0]]
        assert tensor.abs().max() <= 1 / math.sqrt(inputs)
        if tensor.numel() > 300:
            deviation = 1 / math.sqrt(3 * inputs)
            assert tensor.std().item() == pytest.approx(deviation, rel=0.1)
