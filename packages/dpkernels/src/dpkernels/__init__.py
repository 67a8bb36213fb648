"""Hand-written gradients of some networks on a CPU.

`find_passes` says which networks. README.md shows a call, how a pass is tested, and how
to add one.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from dpkernels.networks import (
    CnnShape,
    Conv4Shape,
    LinearShape,
    LstmShape,
    NetworkShape,
)
from dpkernels.passes import Measures, Passes, TaskGradients

__version__ = "1.0.0"

__all__ = [
    "CnnShape",
    "Conv4Shape",
    "LinearShape",
    "LstmShape",
    "Measures",
    "NetworkShape",
    "Passes",
    "TaskGradients",
    "find_passes",
]

PASSES: dict[type[NetworkShape], tuple[str, ...]] = {
    Conv4Shape: ("batch_conv4.BatchConv4", "record_conv4.RecordConv4"),
    CnnShape: ("fused_cnn.FusedCnn",),
    LinearShape: ("linear.LinearHeadGradients",),
    LstmShape: ("lstm.FastLstm",),
}
"""Passes for each class of network, as `file.Class` of this package.

The first pass whose `fits(network, dtype)` is true is used. A file is imported only when
its pass is considered, because numba takes a second to load.
"""


def find_passes(network: NetworkShape, dtype: Any = np.float32) -> type[Passes] | None:
    """Return the class of the passes that compute a network, or None.

    Args:
        network: shapes of the network's layers.
        dtype: type of the parameters, float32 or float64.

    >>> network = LinearShape(input_shape=(2, 2, 1), outputs=3)
    >>> find_passes(network)(network).name
    'linear-head'
    """
    number = np.dtype(dtype)
    for name in PASSES.get(type(network), ()):
        file, class_name = name.split(".")
        implementation: type[Passes] = getattr(
            importlib.import_module(f"{__name__}.{file}"), class_name
        )
        if implementation.fits(network, number):
            return implementation
    return None
