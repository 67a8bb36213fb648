"""Genotypes, and networks of cells against DARTS written in torch's own layers."""

import itertools
import math
import runpy
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.files import write_json
from dpfedbench.models.genotype import OPERATIONS, Space, read_genotype
from dpfedbench.models.genotypes import source
from dpfedbench.models.zoo.darts import DartsCells, DartsSearch
from tests.shipped import ROOT

PlainSearch = runpy.run_path(str(ROOT / "benchmarks" / "search.py"))["PlainSearch"]
SHAPES = {7: ((28, 28, 1), 4), 8: ((32, 32, 3), 4)}
SMALL = {"filters": 4, "cells": 3, "nodes": 2, "pooling": 4}


def search(**settings):
    return DartsSearch(**SMALL | settings)


def initial(net):
    return torch.from_numpy(net.initial(np.random.default_rng(0)))


@pytest.mark.parametrize(
    ("model", "shape", "weights"),
    [
        # DARTS' own search network (its released model counts 1.93 M), and a small one.
        (DartsSearch(), (32, 32, 3), 1_930_618),
        (DartsSearch(**SMALL | {"filters": 8}), (28, 28, 1), 77_474),
    ],
)
def test_search_network_has_as_many_weights_as_darts(model, shape, weights):
    net = model.net(input_shape=shape, outputs=10)
    end = weights + model.space.size
    assert net.dimension == end
    assert net.blocks == {
        "weights": slice(0, weights),
        "architecture": slice(weights, end),
    }
    assert net.head == ("classifier.weight", "classifier.bias")


@pytest.mark.parametrize("side", SHAPES)
@pytest.mark.parametrize(("nodes", "groups"), [(2, None), (3, None), (2, 1), (3, 2)])
def test_search_network_has_darts_logits_and_gradients(side, nodes, groups):
    shape, pooling = SHAPES[side]
    model = search(pooling=pooling, nodes=nodes, groups=groups)
    net = model.net(input_shape=shape, outputs=5)
    rng = np.random.default_rng(0)
    theta = net.initial(rng).astype(np.float64)
    theta += 0.1 * rng.standard_normal(net.dimension)
    theta = torch.from_numpy(theta).requires_grad_()
    x = rng.integers(0, 256, (3, *shape), np.uint8)
    y = rng.integers(0, 5, 3)
    plain = PlainSearch(model, shape, 5).double()
    parameters = plain.load(net.tensors(theta))
    logits = plain(torch.from_numpy(x).double().movedim(-1, 1) / 255)
    torch.testing.assert_close(net.logits(theta, x), logits, rtol=1e-10, atol=1e-12)
    (gradient,) = torch.autograd.grad(net.losses(theta, x, y).sum(), theta)
    loss = functional.cross_entropy(logits, torch.from_numpy(y), reduction="sum")
    parts = torch.autograd.grad(loss, [*parameters, *plain.architecture.values()])
    expected = torch.cat([part.flatten() for part in parts])
    assert (gradient - expected).norm() < 1e-10 * expected.norm()


def test_search_network_has_darts_initial_weights():
    """80 architecture weights of deviation 0.001, measured to a third (4 sigma)."""
    model = search()
    net = model.net(input_shape=(28, 28, 1), outputs=10)
    tensors = net.tensors(initial(net))
    largest = tensors["stem.weight"].abs().max()
    assert largest <= 1 / 3 < 1.1 * largest
    assert (tensors["stem_norm.scale"] == 1).all()
    assert (tensors["stem_norm.shift"] == 0).all()
    kinds = [tensors[f"architecture.{kind}"].ravel() for kind in model.space.kinds]
    assert 0.67e-3 < torch.cat(kinds).std() < 1.33e-3


@pytest.mark.parametrize(
    "model",
    [
        search(),
        search(groups=1),
        DartsCells.read(SMALL | {"genotype": {"kind": "random", "seed": 3}}),
    ],
    ids=repr,
)
def test_records_of_cells_do_not_depend_on_each_other(model):
    """The maps are not zero on average, so logits differ between records."""
    net = model.net(input_shape=(28, 28, 1), outputs=10)
    net.refuse_record_level()
    theta = initial(net)
    x = np.random.default_rng(1).integers(0, 256, (4, 28, 28, 1), np.uint8)
    logits = net.logits(theta, x)
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    x[3] = 255 - x[3]
    assert torch.equal(logits[:3], net.logits(theta, x)[:3])


def test_cell_of_identities_by_hand():
    """One node without normalisation adds the skips of both inputs."""
    settings = {
        "filters": 2,
        "cells": 1,
        "nodes": 1,
        "reductions": [],
        "affine": False,
        "genotype": {"kind": "same", "operation": "skip_connect"},
    }
    net = DartsCells.read(settings).net(input_shape=(4, 4, 1), outputs=3)
    theta = initial(net)
    tensors = net.tensors(theta)
    x = np.random.default_rng(1).random((2, 4, 4, 1), np.float32)
    inputs = torch.from_numpy(x[..., 0])[:, None]
    stem = functional.conv2d(inputs, tensors["stem.weight"], padding=1)
    stem = functional.instance_norm(stem)
    skips = 0
    for index in (0, 1):
        kernel = tensors[f"cells.0.preparations.{index}.pointwise.weight"]
        prepared = functional.conv2d(stem.relu(), kernel)
        skips = skips + functional.instance_norm(prepared)
    pooled = skips.relu().mean((2, 3))
    expected = pooled @ tensors["classifier.weight"].T + tensors["classifier.bias"]
    torch.testing.assert_close(net.logits(theta, x), expected)


def test_reductions_are_after_one_and_two_thirds_of_the_cells():
    expected = {1: (0,), 2: (0, 1), 3: (1, 2), 8: (2, 5), 20: (6, 13)}
    assert {cells: search(cells=cells).halving for cells in expected} == expected
    assert search(cells=1).space.kinds == ("reduction",)
    assert search(reductions=[]).space.kinds == ("normal",)


# Genotypes


SPACE = Space(("none", "skip_connect", "sep_conv_3x3"), 2)


def architecture(*normal):
    """Return weights of `SPACE` with these shares by normal edge; others are equal."""
    shares = np.array([normal, np.full((5, 3), 1 / 3)])
    return np.log(np.maximum(shares, 1e-30)).ravel()


def test_genotype_keeps_the_two_strongest_inputs_and_not_none():
    """Node 1: `none` is the strongest of all on the edge from state 0. Without it the
    other edges are stronger. Of equal edges the first is kept.
    """
    node_0 = [(0.0, 0.9, 0.1), (0.98, 0.005, 0.015)]
    node_1 = [(0.8, 0.15, 0.05), (0.5, 0.1, 0.4), (0.1, 0.7, 0.2)]
    genotype = SPACE.genotype(architecture(*node_0, *node_1))
    assert genotype.cells["normal"] == (
        (("skip_connect", 0), ("sep_conv_3x3", 1)),
        (("sep_conv_3x3", 1), ("skip_connect", 2)),
    )
    first = (("skip_connect", 0), ("skip_connect", 1))
    assert genotype.cells["reduction"] == (first, first)


def test_space_entropy_is_that_of_the_softmax_in_nats():
    uniform = SPACE.entropy(np.zeros(SPACE.size))
    assert uniform == pytest.approx({"normal": math.log(3), "reduction": math.log(3)})
    halves = architecture(*[(0.5, 0.5, 0.0)] * 5)
    assert SPACE.entropy(halves)["normal"] == pytest.approx(math.log(2))
    shares = SPACE.weights(halves + 7.0)["normal"]
    assert shares == pytest.approx(np.tile([0.5, 0.5, 0.0], (5, 1)))


def test_random_genotypes_are_uniform():
    """Five deviations of a share of 1/6 are 0.034 (6e-7 for each of 6 + 7 shares)."""
    space = Space(nodes=3)
    rng = np.random.default_rng(0)
    draws = [space.random(rng).cells["normal"][2] for _ in range(3000)]
    pairs = Counter((low, high) for (_, low), (_, high) in draws)
    shares = [pairs[pair] / 3000 for pair in itertools.combinations(range(4), 2)]
    assert shares == pytest.approx([1 / 6] * 6, abs=0.034)
    operations = Counter(name for node in draws for name, _ in node)
    shares = [operations[name] / 6000 for name in OPERATIONS]
    assert shares[0] == 0
    assert shares[1:] == pytest.approx([1 / 7] * 7, abs=0.023)


def test_genotype_sources_give_genotypes_of_the_space(tmp_path):
    space = Space(nodes=2)
    random = source.RandomGenotype(seed=1).genotype_in(space)
    write_json(tmp_path / "genotype.json", random.to_json())
    assert read_genotype(tmp_path / "genotype.json") == random
    assert random == source.RandomGenotype(seed=1).genotype_in(space)
    assert random != source.RandomGenotype(seed=2).genotype_in(space)
    same = source.SameGenotype(operation="skip_connect").genotype_in(space)
    assert same == space.same("skip_connect")
    cell = [
        [["skip_connect", 0], ["sep_conv_3x3", 1]],
        [["sep_conv_5x5", 2], ["skip_connect", 0]],
    ]
    stated = source.StatedGenotype.read(
        {"kind": "stated", "normal": cell, "reduction": cell}
    )
    node = stated.genotype_in(space).cells["normal"][1]
    assert node == (("skip_connect", 0), ("sep_conv_5x5", 2))
