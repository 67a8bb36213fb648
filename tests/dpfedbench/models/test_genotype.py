"""Search spaces and genotypes: what is kept of architecture weights, and what is
refused.
"""

import math

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.files import write_json
from dpfedbench.models.genotype import OPERATIONS, Genotype, Space, edge, read_genotype
from dpfedbench.models.genotypes.random import RandomGenotype
from dpfedbench.models.genotypes.same import SameGenotype
from dpfedbench.models.genotypes.stated import StatedGenotype

SMALL = Space(("none", "skip_connect", "sep_conv_3x3"), 2)


def weights(**shares):
    """Architecture weights of `SMALL` of the given shares, named kind_node_state; else
    a third each.
    """
    found = np.full((2, SMALL.edges, 3), 1 / 3)
    for place, row in shares.items():
        kind, node, state = place.split("_")
        found[("normal", "reduction").index(kind), edge(int(node), int(state))] = row
    return np.log(np.maximum(found, 1e-30)).ravel()


def test_sizes_are_those_of_darts():
    # Four nodes with 2, 3, 4 and 5 inputs, eight operations, two kinds of cells (Liu et
    # al. 2018, Section 2).
    assert Space().edges == 14 and Space().size == 2 * 14 * 8
    assert [edge(node, 0) for node in range(4)] == [0, 2, 5, 9]


def test_the_strongest_two_inputs_are_kept_and_none_is_not():
    found = SMALL.genotype(
        weights(
            normal_0_0=(0.0, 0.9, 0.1),
            normal_0_1=(0.98, 0.005, 0.015),
            # Node 1: `none` is the strongest of all on the edge from state 0; without
            # it the others are stronger.
            normal_1_0=(0.8, 0.15, 0.05),
            normal_1_1=(0.5, 0.1, 0.4),
            normal_1_2=(0.1, 0.7, 0.2),
        )
    )
    assert found.cells["normal"] == (
        (("skip_connect", 0), ("sep_conv_3x3", 1)),
        (("sep_conv_3x3", 1), ("skip_connect", 2)),
    )
    # Of equals, the first: states 0 and 1, and the first operation that is not `none`.
    assert found.cells["reduction"] == ((("skip_connect", 0), ("skip_connect", 1)),) * 2


def test_shares_are_a_softmax_and_their_entropy_is_in_nats():
    assert SMALL.entropy(np.zeros(SMALL.size)) == pytest.approx(
        {"normal": math.log(3), "reduction": math.log(3)}
    )
    rows = {
        f"normal_{node}_{state}": (0.5, 0.5, 0.0)
        for node in range(2)
        for state in range(2 + node)
    }
    own = weights(**rows)
    assert SMALL.entropy(own)["normal"] == pytest.approx(math.log(2))
    assert SMALL.weights(own + 7.0)["normal"] == pytest.approx(
        np.tile([0.5, 0.5, 0.0], (5, 1))
    )
    with pytest.raises(ValueError, match=r"\[30\]"):
        SMALL.weights(np.zeros(29))


def test_random_genotypes_are_uniform():
    # 3,000 draws of node 2's inputs: each of the 6 pairs has a share of 1/6; five
    # deviations are 0.034 (two sides: 6e-7 for each of 6 + 7 shares).
    space, rng = Space(nodes=3), np.random.default_rng(0)
    pairs, operations = [], []
    for _ in range(3000):
        (first, one), (second, two) = space.random(rng).cells["normal"][2]
        pairs.append((one, two))
        operations += [first, second]
    shares = (
        np.array(
            [pairs.count(pair) for pair in {(a, b) for b in range(4) for a in range(b)}]
        )
        / 3000
    )
    assert len(shares) == 6 and np.abs(shares - 1 / 6).max() < 0.034
    counts = np.array([operations.count(name) for name in OPERATIONS]) / 6000
    assert counts[0] == 0 and np.abs(counts[1:] - 1 / 7).max() < 0.023


def test_a_genotype_is_read_back(tmp_path):
    found = Space(nodes=3).random(np.random.default_rng(4))
    write_json(tmp_path / "genotype.json", found.to_json())
    assert read_genotype(tmp_path / "genotype.json") == found


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"operations": 3, "nodes": 1, "cells": {}}', "no"]
)
def test_a_file_that_is_no_genotype_is_refused(tmp_path, content):
    (tmp_path / "genotype.json").write_text(content)
    with pytest.raises(BenchError, match=r"genotype\.json") as caught:
        read_genotype(tmp_path / "genotype.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"operations": ("none",)}, "no operation that keeps the shape"),
        ({"operations": ()}, "no operation that keeps the shape"),
        ({"operations": ("skip",)}, "the nearest is skip_connect"),
        ({"operations": ("skip_connect", "skip_connect")}, "twice"),
        ({"nodes": 0}, "0 nodes"),
    ],
)
def test_an_impossible_space_is_refused(space, said):
    with pytest.raises(BenchError, match=said):
        Space(**space)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (Space(nodes=3), "has 4 nodes, not 3: set model.nodes to 4"),
        (Space(("sep_conv_3x3",)), "has skip_connect, which is none of sep_conv_3x3"),
        (Space(nodes=4, kinds=("normal", "reduction")), "it has no reduction cell"),
    ],
)
def test_a_genotype_of_another_space_is_refused(space, said):
    with pytest.raises(BenchError, match=said):
        Space(kinds=("normal",)).same("skip_connect").check(space)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ((((("skip_connect", 0), ("skip_connect", 0)),)), "2 inputs, each another"),
        ((((("skip_connect", 0),),)), "2 inputs, each another"),
        (
            (((("skip_connect", 0), ("skip_connect", 2)),)),
            "reads state 2: give one of 0 to 1",
        ),
        ((((("none", 0), ("skip_connect", 1)),)), "has none"),
    ],
)
def test_impossible_edges_are_refused(nodes, said):
    with pytest.raises(BenchError, match=said):
        Genotype(Space(nodes=1, kinds=("normal",)), {"normal": nodes})


def test_sources():
    space = Space(nodes=2)
    assert (
        RandomGenotype(seed=1).of(space)
        == RandomGenotype(seed=1).of(space)
        != RandomGenotype(seed=2).of(space)
    )
    assert SameGenotype(operation="skip_connect").of(space) == space.same(
        "skip_connect"
    )
    with pytest.raises(BenchError, match="has conv"):
        SameGenotype(operation="conv").of(space)
    cell = [
        [["skip_connect", 0], ["sep_conv_3x3", 1]],
        [["sep_conv_5x5", 2], ["skip_connect", 0]],
    ]
    stated = StatedGenotype.read(
        {"kind": "stated", "normal": cell, "reduction": cell}
    ).of(space)
    assert stated.cells["normal"][1] == (("skip_connect", 0), ("sep_conv_5x5", 2))
    with pytest.raises(BenchError, match=r"not \[operation, state\]"):
        StatedGenotype.read({"kind": "stated", "normal": [[["skip_connect", "a"]]]}).of(
            space
        )
