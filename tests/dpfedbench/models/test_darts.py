"""Networks of cells, against DARTS written in torch's own layers; what their settings
refuse.
"""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.models.zoo.darts import DartsCells, DartsSearch

PlainSearch = runpy.run_path(
    str(Path(__file__).parents[3] / "benchmarks" / "search.py")
)["PlainSearch"]
SHAPES = {7: ((28, 28, 1), 4), 8: ((32, 32, 3), 4)}


def settings(**more):
    return DartsSearch(**{"filters": 4, "cells": 3, "nodes": 2, "pooling": 4} | more)


@pytest.mark.parametrize(
    ("own", "shape", "weights"),
    [
        # DARTS' own search network (its released model counts 1.93 M), and the
        # prototype's of issue 18.
        (DartsSearch(), (32, 32, 3), 1_930_618),
        (DartsSearch(filters=8, cells=3, nodes=2, pooling=4), (28, 28, 1), 77_474),
    ],
)
def test_the_search_network_has_as_many_weights_as_darts(own, shape, weights):
    net = own.net(input_shape=shape, outputs=10)
    size = own.space.size
    assert net.blocks == {
        "weights": slice(0, weights),
        "architecture": slice(weights, weights + size),
    }
    assert net.dimension == weights + size
    assert net.head == ("classifier.weight", "classifier.bias")


@pytest.mark.parametrize("side", SHAPES)
@pytest.mark.parametrize(("nodes", "groups"), [(2, None), (3, None), (2, 1), (3, 2)])
def test_logits_and_slopes_are_those_of_darts_in_torchs_layers(side, nodes, groups):
    shape, pooling = SHAPES[side]
    own = settings(pooling=pooling, nodes=nodes, groups=groups)
    net, rng = own.net(input_shape=shape, outputs=5), np.random.default_rng(0)
    theta = torch.from_numpy(
        net.initial(rng).astype(np.float64) + 0.1 * rng.standard_normal(net.dimension)
    )
    x, y = rng.integers(0, 256, (3, *shape), np.uint8), rng.integers(0, 5, 3)
    theta.requires_grad_()
    plain = PlainSearch(own, shape, 5).double()
    order = plain.load(net.tensors(theta))
    inputs = torch.from_numpy(x).double().movedim(-1, 1) / 255
    logits = plain(inputs)
    torch.testing.assert_close(net.logits(theta, x), logits, rtol=1e-10, atol=1e-12)
    (slope,) = torch.autograd.grad(net.losses(theta, x, y).sum(), theta)
    loss = functional.cross_entropy(logits, torch.from_numpy(y), reduction="sum")
    wanted = torch.autograd.grad(loss, [*order, *plain.architecture.values()])
    flat = torch.cat([part.flatten() for part in wanted])
    assert (slope - flat).norm() < 1e-10 * flat.norm()


def test_first_weights_are_those_of_darts():
    own = settings()
    net = own.net(input_shape=(28, 28, 1), outputs=10)
    named = net.tensors(torch.from_numpy(net.initial(np.random.default_rng(0))))
    assert (
        named["stem.weight"].abs().max()
        <= 1 / 3
        < 1.1 * named["stem.weight"].abs().max()
    )
    assert (named["stem_norm.scale"] == 1).all() and (
        named["stem_norm.shift"] == 0
    ).all()
    drawn = torch.cat(
        [named[f"architecture.{kind}"].ravel() for kind in own.space.kinds]
    )
    # 80 draws of deviation 0.001: their own is within a third of it (four deviations:
    # 6e-5).
    assert 0.67e-3 < drawn.std() < 1.33e-3


@pytest.mark.parametrize(
    "genotype",
    [
        {"kind": "random", "seed": 3},
        {"kind": "same"},
        {"kind": "same", "operation": "skip_connect"},
    ],
)
def test_no_record_of_a_network_depends_on_another(genotype):
    for own in (
        settings(),
        settings(groups=1),
        DartsCells.read(
            dict(
                kind="darts-cells",
                filters=4,
                cells=3,
                nodes=2,
                pooling=4,
                genotype=genotype,
            )
        ),
    ):
        net = own.net(input_shape=(28, 28, 1), outputs=10)
        net.refuse_record_level()
        theta = torch.from_numpy(net.initial(np.random.default_rng(0)))
        x = np.random.default_rng(1).integers(0, 256, (4, 28, 28, 1), np.uint8)
        logits = net.logits(theta, x)
        # Maps of mean zero would tell the classes nothing: logits differ between
        # records.
        assert (logits[0] - logits[1]).abs().max() > 1e-3
        x[3] = 255 - x[3]
        assert torch.equal(logits[:3], net.logits(theta, x)[:3])


def test_a_known_cell_computes_what_it_says():
    """One node without normalisation between: the skips of both inputs, added up."""
    net = DartsCells.read(
        {
            "kind": "darts-cells",
            "filters": 2,
            "cells": 1,
            "nodes": 1,
            "reductions": [],
            "affine": False,
            "genotype": {"kind": "same", "operation": "skip_connect"},
        }
    ).net(input_shape=(4, 4, 1), outputs=3)
    theta = torch.from_numpy(net.initial(np.random.default_rng(0)))
    named, x = (
        net.tensors(theta),
        np.random.default_rng(1).random((2, 4, 4, 1), np.float32),
    )

    def normed(maps):
        centred = maps - maps.mean((2, 3), keepdim=True)
        return centred / (centred.square().mean((2, 3), keepdim=True) + 1e-5).sqrt()

    stem = normed(
        functional.conv2d(
            torch.from_numpy(x[..., 0])[:, None], named["stem.weight"], padding=1
        )
    )
    both = sum(
        normed(
            functional.conv2d(
                stem.relu(), named[f"cells.0.preparations.{place}.pointwise.weight"]
            )
        )
        for place in (0, 1)
    )
    wanted = (
        both.relu().mean((2, 3)) @ named["classifier.weight"].T
        + named["classifier.bias"]
    )
    torch.testing.assert_close(net.logits(theta, x), wanted)


def test_reductions_are_after_one_and_two_thirds():
    assert [settings(cells=cells).halving for cells in (1, 2, 3, 8, 20)] == [
        (0,),
        (0, 1),
        (1, 2),
        (2, 5),
        (6, 13),
    ]
    assert settings(cells=1).space.kinds == ("reduction",) and settings(
        reductions=[]
    ).space.kinds == ("normal",)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"pooling": 14}, r"maps of 1 pixel a side.*lower model\.pooling"),
        ({"pooling": 60}, "maps of 0 pixel"),
        ({"operations": ["none"]}, "keeps the shape"),
    ],
)
def test_impossible_networks_are_refused(values, said):
    with pytest.raises(BenchError, match=said):
        settings(**values).net(input_shape=(28, 28, 1), outputs=10)


def test_a_genotype_of_another_space_is_refused():
    own = DartsCells.read(
        {
            "kind": "darts-cells",
            "nodes": 2,
            "operations": ["skip_connect"],
            "genotype": {"kind": "same"},
        }
    )
    with pytest.raises(BenchError, match="another search space"):
        own.net(input_shape=(28, 28, 1), outputs=10)
