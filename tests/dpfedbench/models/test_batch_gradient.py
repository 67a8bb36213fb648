"""Networks of cells in training mode, against the same in torch's own layers."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.models.batch_gradient import BatchGradient, generator_of
from dpfedbench.models.cell_layers import (
    AuxiliaryHead,
    BatchNorm,
    DropPath,
    Normalisation,
)
from dpfedbench.models.zoo.darts import DartsCells

SMALL = {"filters": 2, "cells": 3, "nodes": 1, "pooling": 4}


def network(**more):
    own = DartsCells.read(SMALL | {"genotype": {"kind": "same"}} | more)
    return own.net(input_shape=(32, 32, 3), outputs=10)


def batch(count=6):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
    return images, rng.integers(0, 10, count)


def measured(net, *, theta=None, drop_path=0.0, auxiliary=0.4, seed=0, progress=1.0):
    found = net.initial(np.random.default_rng(1)) if theta is None else theta
    return BatchGradient(net, device="cpu", drop_path=drop_path, auxiliary=auxiliary)(
        found,
        *batch(),
        generator=generator_of(np.random.default_rng(seed)),
        progress=progress,
    )


def test_batch_normalisation_is_torchs_in_training_and_in_tests():
    own, other = BatchNorm(3, affine=True), nn.BatchNorm2d(3)
    with torch.no_grad():
        for ours, theirs in ((own.scale, other.weight), (own.shift, other.bias)):
            ours.copy_(torch.rand(3))
            theirs.copy_(ours)
    x = torch.rand(5, 3, 4, 4)
    own.uses_batch = True
    assert torch.equal(own(x), other(x))
    assert torch.equal(own.running[0], other.running_mean)
    assert torch.equal(own.running[1], other.running_var)
    with torch.no_grad():
        own.mean.copy_(own.running[0])
        own.variance.copy_(own.running[1])
    own.uses_batch = False
    assert torch.equal(own(x), other.eval()(x))


def test_statistics_are_new_and_their_coordinates_have_no_gradient():
    net = network(batch_normalisation=True)
    found = measured(net)
    names = [name.rpartition(".")[2] for name in net.shapes]
    sizes = [int(np.prod(shape)) for shape in net.shapes.values()]
    kinds = np.repeat([name in ("mean", "variance") for name in names], sizes)
    assert not found.gradient.numpy()[kinds].any()
    places = np.zeros(len(kinds), bool)
    for place, values in found.statistics:
        places[place] = True
        assert len(values) == place.stop - place.start
    assert (places == kinds).all() and kinds.any()
    # The stem's: a tenth of the batch's mean, of which torch has the same.
    theta = torch.from_numpy(net.initial(np.random.default_rng(1)))
    images = torch.from_numpy(batch()[0]).float().movedim(-1, 1) / 255
    pooled = functional.avg_pool2d(images, 4)
    maps = functional.conv2d(pooled, net.tensors(theta)["stem.weight"], padding=1)
    first = dict(zip(net.shapes, np.cumsum([0, *sizes]), strict=False))
    stem = {place.start: values for place, values in found.statistics}
    mean = stem[first["stem_norm.mean"]]
    assert torch.allclose(mean, 0.1 * maps.mean((0, 2, 3)), atol=1e-6)
    variance = stem[first["stem_norm.variance"]]
    wanted = 0.9 + 0.1 * maps.var((0, 2, 3), correction=1)
    assert torch.allclose(variance, wanted, atol=1e-6)


def test_in_tests_no_record_depends_on_another():
    net = network(batch_normalisation=True)
    theta = torch.from_numpy(net.initial(np.random.default_rng(1)))
    images, _ = batch()
    whole, alone = net.logits(theta, images), net.logits(theta, images[:1])
    assert torch.allclose(whole[:1], alone, atol=1e-6)
    changed = images.copy()
    changed[1:] = 255 - changed[1:]
    assert torch.allclose(net.logits(theta, changed)[:1], alone, atol=1e-6)


def test_drop_path_has_the_maps_as_its_mean_and_drops_whole_records():
    """Of 40,000 records a share of 0.2 is zero, within 4.5 standard deviations of
    0.002, and the rest is divided by 0.8.
    """
    drop = DropPath(0.2, torch.Generator().manual_seed(0))
    found = drop(torch.full((40_000, 2, 1, 1), 3.0))
    assert set(found.unique().tolist()) == {0.0, 3.75}
    assert (found[:, 0] == found[:, 1]).all()
    assert abs((found[:, 0] == 0).double().mean() - 0.2) < 4.5 * 0.002


def test_drop_path_grows_with_the_training_and_is_no_part_of_tests():
    """The last probability at the end of the training, none at its start; a test has
    no forward pass with it at all.
    """
    net = network(batch_normalisation=True)
    plain = measured(net).gradient
    for progress, same in ((0.0, True), (1.0, False)):
        found = measured(net, drop_path=0.9, progress=progress).gradient
        assert torch.equal(found, plain) == same
    one, again, other = (
        measured(net, drop_path=0.5, seed=seed).gradient for seed in (0, 0, 1)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_the_identity_is_never_dropped():
    skip = network(
        batch_normalisation=True,
        reductions=[],
        genotype={"kind": "same", "operation": "skip_connect"},
    )
    assert torch.equal(measured(skip, drop_path=0.9).gradient, measured(skip).gradient)


def test_the_second_classifier_is_darts():
    """ReLU, a mean over 5 x 5 in steps of 3, two convolutions with normalisation, and
    a linear layer; by torch's own layers.
    """
    own = AuxiliaryHead(4, 10, Normalisation(None, affine=True, batch=True))
    plain = nn.Sequential(
        nn.ReLU(),
        nn.AvgPool2d(5, stride=3, padding=0, count_include_pad=False),
        nn.Conv2d(4, 128, 1, bias=False),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.Conv2d(128, 768, 2, bias=False),
        nn.BatchNorm2d(768),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(768, 10),
    )
    with torch.no_grad():
        for place, layer in ((2, own.pointwise), (5, own.corner)):
            plain[place].weight.normal_(generator=torch.Generator().manual_seed(place))
            layer.weight.copy_(plain[place].weight)
        own.classifier.load_state_dict(plain[9].state_dict())
    for layer in own.modules():
        if isinstance(layer, BatchNorm):
            layer.uses_batch = True
    x = torch.randn(6, 4, 8, 8)
    assert torch.allclose(own(x), plain(x), atol=1e-4)


@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_the_second_loss_counts_by_its_weight(weight):
    """The gradient is linear in the weight: g(w) = g(0) + w (g(1) - g(0)); the loss
    that is told is the network's own.
    """
    net = network(batch_normalisation=True, auxiliary=True)
    none, all_, found = (measured(net, auxiliary=share) for share in (0.0, 1.0, weight))
    wanted = none.gradient + weight * (all_.gradient - none.gradient)
    assert torch.allclose(found.gradient, wanted, atol=1e-5)
    assert found.loss == none.loss and not torch.equal(none.gradient, all_.gradient)


def test_the_second_classifier_is_no_part_of_tests():
    net = network(batch_normalisation=True, auxiliary=True)
    theta = torch.from_numpy(net.initial(np.random.default_rng(1)))
    changed = dict(net.tensors(theta.clone()))
    for name, tensor in changed.items():
        if name.startswith("auxiliary."):
            tensor += 1
    other = torch.from_numpy(net.flatten({k: v.numpy() for k, v in changed.items()}))
    images, _ = batch()
    assert not torch.equal(theta, other)
    assert torch.equal(net.logits(theta, images), net.logits(other, images))
