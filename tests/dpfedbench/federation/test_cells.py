"""Runs of networks of cells: bits do not depend on threads, and a plan refuses a
genotype of another search space.
"""

import pytest
from safetensors.numpy import load_file

from dpfedbench.errors import BenchError

from . import conftest
from .conftest import LOTS, train

CELLS = {"kind": "darts-cells", "filters": 2, "cells": 2, "nodes": 1, "pooling": 4}


def make_config(**model):
    rounds = {"participation": {"rounds": 2}}
    return conftest.make_config(
        {"method": "dp-fl", "clipping": {"threshold": 1.0}},
        rounds,
        {"model": CELLS | model},
        general=LOTS,
    )


def test_threads_change_no_bit(silos, tmp_path):
    for threads in (1, 2):
        train(
            make_config(genotype={"kind": "same"}),
            silos,
            tmp_path / str(threads),
            threads=threads,
        )
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in "12")
    assert one.keys() == two.keys() and all(
        (one[name] == two[name]).all() for name in one
    )


@pytest.mark.parametrize(
    ("genotype", "said"),
    [
        ({"kind": "same", "operation": "conv"}, "another search space"),
        (
            {"kind": "stated", "normal": [[["skip_connect", 0], ["skip_connect", 1]]]},
            "it has no reduction cell",
        ),
    ],
)
def test_a_genotype_of_another_space_is_refused_before_the_first_round(genotype, said):
    with pytest.raises(BenchError, match=said):
        make_config(reductions=[1], genotype=genotype)
