"""Networks of cells in training mode, against torch's own layers."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.models import cell_layers
from dpfedbench.models.batch_gradient import BatchGradient, generator_of
from dpfedbench.models.zoo.darts import DartsCells

SMALL = {"filters": 2, "cells": 3, "nodes": 1, "pooling": 4}


def network(**settings):
    genotype = {"genotype": {"kind": "same"}}
    model = DartsCells.read(SMALL | genotype | {"batch_normalisation": True} | settings)
    return model.net(input_shape=(32, 32, 3), outputs=10)


def initial(net):
    return net.initial(np.random.default_rng(1))


def batch(count=6):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
    return images, rng.integers(0, 10, count)


def batch_gradient(net, drop_path=0.0, auxiliary=0.4, seed=0, progress=1.0):
    options = {"drop_path": drop_path, "auxiliary": auxiliary}
    gradient = BatchGradient(net, device="cpu", **options)
    generator = generator_of(np.random.default_rng(seed))
    return gradient(initial(net), *batch(), generator=generator, progress=progress)


def test_batch_norm_is_torchs_in_training_and_in_tests():
    layer = cell_layers.BatchNorm(3, affine=True)
    reference = nn.BatchNorm2d(3)
    layer.scale.data = reference.weight.data = torch.rand(3)
    layer.shift.data = reference.bias.data = torch.rand(3)
    x = torch.rand(5, 3, 4, 4)
    layer.uses_batch = True
    assert torch.equal(layer(x), reference(x))
    mean, variance = layer.running.values()
    assert torch.equal(mean, reference.running_mean)
    assert torch.equal(variance, reference.running_var)
    layer.mean.data = mean
    layer.variance.data = variance
    layer.uses_batch = False
    assert torch.equal(layer(x), reference.eval()(x))


def test_batch_statistics_are_those_of_torch_and_have_no_gradient():
    """The new mean of the stem is a tenth of the batch's mean."""
    net = network()
    measured = batch_gradient(net)
    statistics = torch.full((net.dimension,), torch.nan)
    for coordinates, values in measured.statistics:
        statistics[coordinates] = values
    gradients = net.tensors(measured.gradient)
    for name, values in net.tensors(statistics).items():
        if name.endswith((".mean", ".variance")):
            assert values.isfinite().all()
            assert not gradients[name].any()
        else:
            assert values.isnan().all()

    theta = torch.from_numpy(initial(net))
    images = torch.from_numpy(batch()[0]).float().movedim(-1, 1) / 255
    pooled = functional.avg_pool2d(images, 4)
    maps = functional.conv2d(pooled, net.tensors(theta)["stem.weight"], padding=1)
    stem = net.tensors(statistics)
    assert torch.allclose(stem["stem_norm.mean"], 0.1 * maps.mean((0, 2, 3)), atol=1e-6)
    variance = 0.9 + 0.1 * maps.var((0, 2, 3), correction=1)
    assert torch.allclose(stem["stem_norm.variance"], variance, atol=1e-6)


def test_drop_path_has_the_maps_as_its_mean_and_drops_whole_records():
    """A share of 0.2 is zero, within 4.5 deviations; the rest is divided by 0.8."""
    drop = cell_layers.DropPath(0.2, torch.Generator().manual_seed(0))
    maps = drop(torch.full((40_000, 2, 1, 1), 3.0))
    assert set(maps.unique().tolist()) == {0.0, 3.75}
    assert (maps[:, 0] == maps[:, 1]).all()
    assert abs((maps[:, 0] == 0).double().mean() - 0.2) < 4.5 * 0.002


def test_drop_path_grows_from_zero_over_the_training():
    net = network()
    plain = batch_gradient(net).gradient
    start, end, again, reseeded = (
        batch_gradient(net, drop_path=0.9, progress=progress, seed=seed).gradient
        for progress, seed in ((0.0, 0), (1.0, 0), (1.0, 0), (1.0, 1))
    )
    assert torch.equal(start, plain)
    assert not torch.equal(end, plain)
    assert torch.equal(end, again)
    assert not torch.equal(end, reseeded)


def test_drop_path_never_drops_the_identity():
    identity = {"kind": "same", "operation": "skip_connect"}
    net = network(reductions=[], genotype=identity)
    dropped = batch_gradient(net, drop_path=0.9).gradient
    assert torch.equal(dropped, batch_gradient(net).gradient)


def test_auxiliary_head_is_darts():
    """Reference: DARTS' head in torch's layers."""
    head = cell_layers.AuxiliaryHead(
        4, 10, cell_layers.Normalisation(None, affine=True, batch=True)
    )
    reference = nn.Sequential(
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
    generator = torch.Generator().manual_seed(2)
    for index, layer in ((2, head.pointwise), (5, head.corner)):
        nn.init.normal_(reference[index].weight, generator=generator)
        layer.weight.data = reference[index].weight.data
    head.classifier.load_state_dict(reference[9].state_dict())
    for layer in head.modules():
        layer.uses_batch = True
    x = torch.randn(6, 4, 8, 8)
    assert torch.allclose(head(x), reference(x), atol=1e-4)


def test_auxiliary_loss_counts_by_its_weight():
    """The gradient is linear in the weight: g(w) = g(0) + w (g(1) - g(0))."""
    net = network(auxiliary=True)
    without, weighted, whole = (
        batch_gradient(net, auxiliary=weight) for weight in (0.0, 0.4, 1.0)
    )
    expected = without.gradient + 0.4 * (whole.gradient - without.gradient)
    assert torch.allclose(weighted.gradient, expected, atol=1e-5)
    assert weighted.loss == without.loss
    assert not torch.equal(without.gradient, whole.gradient)
