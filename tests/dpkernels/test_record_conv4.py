"""Conv-4 gradients of single records against Opacus; no record's gradient depends on
another. tests/dpfedbench/models/test_gradients.py compares them with autograd.
"""

import warnings

import numpy as np
import torch
from opacus import GradSampleModule
from torch import nn
from torch.nn import functional

from dpfedbench.models.conv4 import NORMALISATION_EPSILON
from dpkernels.record_conv4 import RecordConv4
from tests.dpfedbench.models.nets import conv4
from tests.dpkernels.autograd import relative_errors

NET = conv4(normalisation="record")
RECORDS = 4


def make_records():
    """Return weights, images and labels."""
    rng = np.random.default_rng(0)
    theta = NET.initial(rng) + 0.1 * rng.standard_normal(NET.dimension)
    images = rng.random((RECORDS, 28, 28, 1), dtype=np.float32)
    return theta.astype(np.float32), images, rng.integers(0, 5, RECORDS)


def torch_layers(theta):
    """Return the same network of torch's layers, in groups of four for each block."""
    layers = []
    for channels in (1, 8, 8, 8):
        layers += [
            nn.Conv2d(channels, 8, 3, padding=1, bias=False),
            nn.GroupNorm(8, 8, eps=NORMALISATION_EPSILON),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 5))
    tensors = NET.tensors(torch.from_numpy(theta))
    with torch.no_grad():
        for block in range(4):
            convolution, normalisation = network[4 * block : 4 * block + 2]
            weight = tensors[f"block{block + 1}.weight"]
            convolution.weight.copy_(weight.permute(3, 2, 0, 1))
            normalisation.weight.copy_(tensors[f"block{block + 1}.scale"])
            normalisation.bias.copy_(tensors[f"block{block + 1}.shift"])
        network[-1].weight.copy_(tensors["head.weight"].T)
        network[-1].bias.copy_(tensors["head.bias"])
    return network


def opacus_rows(network):
    """Return the gradients of all records in the order of the net's weights."""
    parts = []
    for block in range(4):
        convolution, normalisation = network[4 * block : 4 * block + 2]
        weight = convolution.weight.grad_sample.permute(0, 3, 4, 2, 1)
        parts.append(weight.reshape(RECORDS, -1))
        parts.append(normalisation.weight.grad_sample)
        parts.append(normalisation.bias.grad_sample)
    parts.append(network[-1].weight.grad_sample.transpose(1, 2).reshape(RECORDS, -1))
    parts.append(network[-1].bias.grad_sample)
    return torch.cat(parts, 1).numpy()


def test_record_conv4_gradients_equal_opacus():
    """Opacus expects memory in the order NCHW, and is wrong without a warning in any
    other order.
    """
    theta, images, labels = make_records()
    network = torch_layers(theta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampled = GradSampleModule(network, loss_reduction="sum")
        logits = sampled(torch.from_numpy(images[..., 0]).unsqueeze(1))
        labels_tensor = torch.from_numpy(labels)
        functional.cross_entropy(logits, labels_tensor, reduction="sum").backward()
    expected = opacus_rows(network)
    rows = np.empty((RECORDS, NET.dimension), np.float32)
    RecordConv4(NET).record_gradients(theta, images, labels, rows)
    assert relative_errors(rows, expected).max() < 1e-5


def test_record_conv4_gradient_has_no_bit_of_another_record():
    theta, images, labels = make_records()
    passes = RecordConv4(NET)
    before, after = np.empty((2, RECORDS, NET.dimension), np.float32)
    passes.record_gradients(theta, images, labels, before)
    images[2] = 1e3
    passes.record_gradients(theta, images, labels, after)
    assert (np.delete(before, 2, 0) == np.delete(after, 2, 0)).all()
    assert (before[2] != after[2]).any()
