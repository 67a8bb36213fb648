"""Gradients of single records against Opacus, and that no record's gradient depends on
another.
"""

import warnings

import numpy as np
import torch
from torch.nn import functional

from dpfedbench.models.conv4 import NORMALISATION_EPSILON
from dpkernels.record_conv4 import RecordConv4
from tests.dpfedbench.models.nets import conv4

NET = conv4(normalisation="record")


def drawn(seed=0, records=4):
    rng = np.random.default_rng(seed)
    theta = (NET.initial(rng) + 0.1 * rng.standard_normal(NET.dimension)).astype(
        np.float32
    )
    return (
        theta,
        rng.random((records, 28, 28, 1), dtype=np.float32),
        rng.integers(0, 5, records),
    )


def test_gradients_equal_those_of_opacus():
    from opacus import GradSampleModule

    theta, images, labels = drawn()
    layers, channels = [], 1
    for _ in range(4):
        layers += [
            torch.nn.Conv2d(channels, 8, 3, padding=1, bias=False),
            torch.nn.GroupNorm(8, 8, eps=NORMALISATION_EPSILON),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
        ]
        channels = 8
    plain = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(8, 5))
    named = NET.tensors(torch.from_numpy(theta))
    with torch.no_grad():
        for block in range(4):
            plain[4 * block].weight.copy_(
                named[f"block{block + 1}.weight"].permute(3, 2, 0, 1)
            )
            plain[4 * block + 1].weight.copy_(named[f"block{block + 1}.scale"])
            plain[4 * block + 1].bias.copy_(named[f"block{block + 1}.shift"])
        plain[-1].weight.copy_(named["head.weight"].T)
        plain[-1].bias.copy_(named["head.bias"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampled = GradSampleModule(plain, loss_reduction="sum")
        # Opacus unfolds memory in the order of NCHW, and is wrong without a word in any
        # other.
        x = torch.from_numpy(images[..., 0]).unsqueeze(1)
        functional.cross_entropy(
            sampled(x), torch.from_numpy(labels), reduction="sum"
        ).backward()
    parts = []
    for block in range(4):
        parts.append(
            plain[4 * block].weight.grad_sample.permute(0, 3, 4, 2, 1).reshape(4, -1)
        )
        parts += [
            plain[4 * block + 1].weight.grad_sample,
            plain[4 * block + 1].bias.grad_sample,
        ]
    parts += [
        plain[-1].weight.grad_sample.transpose(1, 2).reshape(4, -1),
        plain[-1].bias.grad_sample,
    ]
    wanted = torch.cat(parts, 1).numpy()
    found = np.empty((4, NET.dimension), np.float32)
    RecordConv4(NET).each(theta, images, labels, found)
    error = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert error.max() < 1e-5


def test_another_record_changes_no_bit():
    theta, images, labels = drawn()
    passes, before, after = (
        RecordConv4(NET),
        *np.empty((2, 4, NET.dimension), np.float32),
    )
    passes.each(theta, images, labels, before)
    images[2] = 1e3
    passes.each(theta, images, labels, after)
    assert (np.delete(before, 2, 0) == np.delete(after, 2, 0)).all() and (
        before[2] != after[2]
    ).any()


def test_hessian_products_of_single_records_are_automatic_differentiations():
    """Each record is a task with weights and a direction of its own; in float64."""
    theta, images, labels = drawn()
    rng = np.random.default_rng(2)
    weights = theta + 0.1 * rng.standard_normal((4, NET.dimension))
    directions = rng.standard_normal((4, NET.dimension))
    gradients, products = np.empty((2, 4, NET.dimension))
    point = RecordConv4(NET, dtype=torch.float64).at(
        weights, images[:, None], labels[:, None], gradients, products=True
    )
    point.product(directions, products)
    for i in range(4):
        leaf = torch.from_numpy(weights[i]).requires_grad_()
        x = torch.from_numpy(images[i : i + 1]).double()
        logits = NET.logits(leaf, x)
        loss = functional.cross_entropy(logits, torch.from_numpy(labels[i : i + 1]))
        (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
        along = gradient @ torch.from_numpy(directions[i])
        (product,) = torch.autograd.grad(along, leaf)
        np.testing.assert_allclose(gradients[i], gradient.detach(), rtol=0, atol=1e-12)
        np.testing.assert_allclose(products[i], product, rtol=1e-9, atol=1e-9)
