"""Modules over one flat vector: weights, names, refusals, and the CNN of Adap DP-FL."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpfedbench.errors import BenchError

from .nets import Ordered, OwnLoss, Recurrent, cnn, conv4, layers, of, with_group_norm


def test_net_initial_weights_are_the_modules_and_leave_torchs_generator():
    net = of(with_group_norm)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, second = (net.initial(np.random.default_rng(i)) for i in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)
    assert torch.equal(before, torch.get_rng_state())
    bound = 1 / np.sqrt(2 * 9)
    weights = net.tensors(torch.from_numpy(first))["0.weight"]
    assert 0.5 * bound < weights.abs().max() <= bound


@pytest.mark.parametrize(
    ("old", "new"),
    [(conv4(ways=4), conv4(ways=3, rates=(2, 0.1))), (cnn(classes=4), cnn(classes=3))],
)
def test_net_fresh_head_keeps_the_body_bit_for_bit(old, new):
    theta = np.random.default_rng(0).standard_normal(old.dimension).astype(np.float32)
    tensors = new.tensors(torch.from_numpy(new.with_fresh_head(theta, old)))
    for name, tensor in old.tensors(torch.from_numpy(theta)).items():
        if name in old.head:
            assert not tensors[name].any()
        else:
            assert torch.equal(tensors[name], tensor)
    with pytest.raises(BenchError, match="do not fit"):
        conv4(filters=9).with_fresh_head(theta, old)


def test_net_reads_bytes_as_pixels_of_0_to_1():
    net = cnn()
    theta = torch.from_numpy(net.initial(np.random.default_rng(0)))
    x = np.random.default_rng(1).integers(0, 256, (2, 28, 28, 1), np.uint8)
    x.setflags(write=False)
    floats = x.astype(np.float32) / np.float32(255)
    assert torch.equal(net.logits(theta, x), net.logits(theta, floats))


def test_net_uses_the_loss_and_measure_of_its_module():
    net = of(OwnLoss)
    theta = torch.zeros(net.dimension)
    x = np.zeros((4, 8, 8, 2), np.float32)
    y = np.zeros((4, 2), np.int64)
    assert net.losses(theta, x, y).tolist() == pytest.approx([2 * np.log(3)] * 4)
    records = net.inputs(x, theta)
    _, right, answers = net.apply("measures", theta, records, torch.from_numpy(y))
    assert right.tolist() == answers.tolist() == [2] * 4


def behind(function):
    """Return a network of a linear layer behind a function of records."""
    layer = type("Layer", (nn.Module,), {"forward": lambda self, x: function(x)})()
    return of(lambda: nn.Sequential(layer, nn.Flatten(), nn.Linear(128, 3)))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x.flatten(1)


MIXING = nn.BatchNorm2d(4, affine=False, track_running_stats=False)


@pytest.mark.parametrize(
    ("net", "layer"),
    [
        (of(lambda: layers(MIXING)), r"layer 1 \(BatchNorm2d\)"),
        (conv4(), r"layer block1 \(_Block\)"),
        (behind(lambda x: x - x.mean(0)), r"layer 0 \(Layer\)"),
    ],
    ids=["batch norm", "functional", "by trying"],
)
def test_net_that_mixes_records_is_refused_for_records_by_the_layer(net, layer):
    net.check()
    with pytest.raises(BenchError, match=rf"mixes records in {layer}, .*GroupNorm"):
        net.refuse_record_level()


@pytest.mark.parametrize(
    "net",
    [
        cnn(),
        conv4(normalisation="record"),
        of(Ordered),
        of(OwnLoss),
        of(lambda: layers(nn.InstanceNorm2d(4, affine=True))),
        of(Recurrent, (6,), 7),
    ],
)
def test_net_with_independent_records_is_accepted_for_records(net):
    net.refuse_record_level()


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (of(lambda: layers(nn.BatchNorm2d(4))), "keeps running statistics"),
        (
            of(lambda: nn.Sequential(Counting(), nn.Linear(128, 3))),
            "0 .*keeps running statistics",
        ),
        (of(lambda: layers(nn.Dropout(0.1))), "draws random numbers"),
        (behind(nn.functional.dropout), "0 .*draws random numbers"),
        (of(layers, outputs=4), r"\[3, 3\] for 3 records, not logits \[3, 4\]"),
        # Logits for each word of a record are no logits of the record.
        (of(lambda: nn.Embedding(10, 9), (5,), 9), "has to define losses and correct"),
    ],
)
def test_net_that_cannot_be_used_is_refused(net, message):
    with pytest.raises(BenchError, match=message):
        net.check()


def torch_cnn(net, theta):
    """Return the CNN in torch's own layers."""
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
    state = net.tensors(torch.from_numpy(theta))
    hidden = state["fc1.weight"].view(32, 4, 4, 32).permute(0, 3, 1, 2)
    state["fc1.weight"] = hidden.flatten(1)
    state["conv1.weight"] = state["conv1.weight"].permute(3, 2, 0, 1)
    state["conv2.weight"] = state["conv2.weight"].permute(0, 3, 1, 2)
    named = {
        "conv1": layers[0],
        "conv2": layers[3],
        "fc1": layers[7],
        "fc2": layers[9],
    }
    nn.ModuleDict(named).load_state_dict(state)
    return layers


@pytest.mark.parametrize("net", [cnn(), cnn((26, 29, 3), classes=7), cnn((29, 27, 1))])
def test_cnn_logits_equal_those_of_torch_layers(net):
    rng = np.random.default_rng(0)
    theta = net.initial(rng)
    images = torch.from_numpy(rng.random((5, *net.input_shape), dtype=np.float32))
    with torch.no_grad():
        expected = torch_cnn(net, theta)(images.permute(0, 3, 1, 2))
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
