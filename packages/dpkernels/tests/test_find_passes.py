"""Which networks have passes, the layout of their parameters, and what the package needs."""

import subprocess
import sys

import numpy as np
import pytest

from dpkernels import (
    CnnShape,
    Conv4Shape,
    LinearShape,
    LstmShape,
    NetworkShape,
    find_passes,
)

IMAGE = (28, 28, 1)


@pytest.mark.parametrize(
    ("network", "dtype", "name"),
    [
        (Conv4Shape(IMAGE, 4, 5, "batch"), "f4", "conv4-batch"),
        (Conv4Shape(IMAGE, 4, 5, "record"), "f8", "conv4-record"),
        (Conv4Shape(IMAGE, 4, 5, "layer"), "f4", None),
        (Conv4Shape((28, 27, 1), 4, 5, "batch"), "f4", None),
        (Conv4Shape((14, 28, 1), 4, 5, "record"), "f4", None),
        (Conv4Shape(IMAGE, 4, 5, "batch"), "f2", None),
        (CnnShape(IMAGE, 10), "f4", "cnn"),
        (CnnShape(IMAGE, 10), "f8", None),
        (CnnShape((32, 32, 3), 10), "f4", None),
        (LinearShape(IMAGE, 10), "f8", "linear-head"),
        (LstmShape((10,), 23, 6, 2, True), "f4", "lstm"),
    ],
)
def test_find_passes_says_which_networks_have_passes(network, dtype, name):
    passes = find_passes(network, dtype)
    assert (passes.name if passes else None) == name


def test_find_passes_knows_no_subclass():
    class Other(LinearShape):
        pass

    assert find_passes(Other(IMAGE, 10)) is None


@pytest.mark.parametrize(
    ("network", "dimension"),
    [
        # 9 C F, and 9 F F three times, each with 2 F; a head of 1 x 1 x F.
        (Conv4Shape(IMAGE, 4, 5, "batch"), 36 + 3 * 144 + 4 * 8 + 20 + 5),
        (CnnShape(IMAGE, 10), 1024 + 16 + 8192 + 32 + 16384 + 32 + 320 + 10),
        (LinearShape((2, 3, 4), 5), 125),
        (LinearShape((2, 3, 4), 5, bias=False), 120),
        # Embedding of V + 1 rows; 4 w (2 w + 1) a layer; a softmax of V rows.
        (LstmShape((10,), 23, 6, 2, True), 24 * 6 + 2 * 24 * 13),
        (LstmShape((10,), 23, 6, 2, False), 24 * 6 + 2 * 24 * 13 + 23 * 6),
    ],
)
def test_network_counts_its_parameters(network: NetworkShape, dimension):
    assert network.dimension == dimension


def test_package_needs_no_other_package_of_the_repository():
    """Every module is imported while the benchmark and its library cannot be."""
    code = (
        "import importlib, pkgutil, sys\n"
        "for name in ('dpfedbench', 'dpsum', 'dploss', 'dpwatch', 'drawnsets'):\n"
        "    sys.modules[name] = None\n"
        "import dpkernels\n"
        "for module in pkgutil.walk_packages(dpkernels.__path__, 'dpkernels.'):\n"
        "    importlib.import_module(module.name)\n"
        "print(len(dpkernels.__path__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_method_without_passes_returns_none_and_writes_nothing():
    """The CNN has passes over bytes alone; a linear layer writes no rows."""
    cnn = CnnShape(IMAGE, 10)
    linear = LinearShape(IMAGE, 10)
    images = np.zeros((2, *IMAGE), np.float32)
    labels = np.zeros(2, np.int64)
    for network in (cnn, linear):
        passes = find_passes(network)(network)
        rows = np.ones((2, network.dimension), np.float32)
        theta = np.zeros(network.dimension, np.float32)
        assert passes.record_gradients(theta, images, labels, rows) is None
        assert (rows == 1).all()
        assert passes.prepare(images[None]) is None
    passes = find_passes(cnn)(cnn)
    theta = np.zeros(cnn.dimension, np.float32)
    assert not passes.adds_records(images)
    assert passes.evaluate(theta, images, labels) is None
