"""Search spaces and genotypes: selection of edges, entropies, files, refusals."""

import math

import numpy as np
import pytest

from dpfedbench.files import write_json
from dpfedbench.models.genotype import OPERATIONS, Space, edge, read_genotype
from dpfedbench.models.genotypes.source import (
    RandomGenotype,
    SameGenotype,
    StatedGenotype,
)

SMALL = Space(("none", "skip_connect", "sep_conv_3x3"), 2)


def architecture(**shares):
    """Return architecture weights of `SMALL` with these shares, by kind_node_state.

    The shares of all other edges are a third each.
    """
    rows = np.full((2, SMALL.edges, 3), 1 / 3)
    for name, row in shares.items():
        kind, node, state = name.split("_")
        cell = ("normal", "reduction").index(kind)
        rows[cell, edge(int(node), int(state))] = row
    return np.log(np.maximum(rows, 1e-30)).ravel()


def test_genotype_keeps_the_two_strongest_inputs_and_not_none():
    """Node 1: `none` is the strongest of all on the edge from state 0. Without it the
    other edges are stronger. Of equal edges the first is kept.
    """
    genotype = SMALL.genotype(
        architecture(
            normal_0_0=(0.0, 0.9, 0.1),
            normal_0_1=(0.98, 0.005, 0.015),
            normal_1_0=(0.8, 0.15, 0.05),
            normal_1_1=(0.5, 0.1, 0.4),
            normal_1_2=(0.1, 0.7, 0.2),
        )
    )
    assert genotype.cells["normal"] == (
        (("skip_connect", 0), ("sep_conv_3x3", 1)),
        (("sep_conv_3x3", 1), ("skip_connect", 2)),
    )
    first = (("skip_connect", 0), ("skip_connect", 1))
    assert genotype.cells["reduction"] == (first, first)


def test_space_entropy_is_that_of_the_softmax_in_nats():
    uniform = SMALL.entropy(np.zeros(SMALL.size))
    assert uniform == pytest.approx({"normal": math.log(3), "reduction": math.log(3)})
    names = [f"normal_{n}_{state}" for n in range(2) for state in range(2 + n)]
    halves = architecture(**dict.fromkeys(names, (0.5, 0.5, 0.0)))
    assert SMALL.entropy(halves)["normal"] == pytest.approx(math.log(2))
    shares = SMALL.weights(halves + 7.0)["normal"]
    assert shares == pytest.approx(np.tile([0.5, 0.5, 0.0], (5, 1)))


def test_random_genotypes_are_uniform():
    """3,000 draws of node 2's inputs: each of the 6 pairs has a share of 1/6. Five
    deviations are 0.034 (two-sided 6e-7 for each of 6 + 7 shares).
    """
    space = Space(nodes=3)
    rng = np.random.default_rng(0)
    pairs = []
    operations = []
    for _ in range(3000):
        (first, low), (second, high) = space.random(rng).cells["normal"][2]
        pairs.append((low, high))
        operations += [first, second]
    all_pairs = [(low, high) for high in range(4) for low in range(high)]
    shares = np.array([pairs.count(pair) for pair in all_pairs]) / 3000
    assert np.abs(shares - 1 / 6).max() < 0.034
    shares = np.array([operations.count(name) for name in OPERATIONS]) / 6000
    assert shares[0] == 0
    assert np.abs(shares[1:] - 1 / 7).max() < 0.023


def test_genotype_sources_give_genotypes_of_the_space(tmp_path):
    space = Space(nodes=2)
    random = RandomGenotype(seed=1).genotype_in(space)
    write_json(tmp_path / "genotype.json", random.to_json())
    assert read_genotype(tmp_path / "genotype.json") == random
    assert random == RandomGenotype(seed=1).genotype_in(space)
    assert random != RandomGenotype(seed=2).genotype_in(space)
    same = SameGenotype(operation="skip_connect").genotype_in(space)
    assert same == space.same("skip_connect")
    cell = [
        [["skip_connect", 0], ["sep_conv_3x3", 1]],
        [["sep_conv_5x5", 2], ["skip_connect", 0]],
    ]
    stated = StatedGenotype.read({"kind": "stated", "normal": cell, "reduction": cell})
    node = stated.genotype_in(space).cells["normal"][1]
    assert node == (("skip_connect", 0), ("sep_conv_5x5", 2))
