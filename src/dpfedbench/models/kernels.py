"""Border to `dpkernels`, the hand-written passes of some networks on a CPU.

Nothing else in dpfedbench imports dpkernels. Where it is not installed, or has no pass
for a network, torch computes the gradients and numpy adds up the contributions.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import platform
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from dpfedbench.models.cnn import Cnn
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.linear import LinearHead
from dpfedbench.models.lstm import Lstm
from dpfedbench.models.net import Net
from dpfedbench.models.points import dtype_name
from dpsum import private_sum

if TYPE_CHECKING:
    from dpkernels import NetworkShape, Passes


def find_passes(
    net: Net, dtype: torch.dtype
) -> tuple[type[Passes], NetworkShape] | None:
    """Return the passes of a network with its shapes, or None.

    Args:
        net: the network. Subclasses of the zoo's modules have no passes.
        dtype: type of its weights: float32, or float64 for tests.
    """
    shape = _shape_of(net.module) if is_installed() else None
    if shape is None:
        return None
    import dpkernels

    passes = dpkernels.find_passes(shape, dtype_name(dtype))
    return None if passes is None else (passes, shape)


def _shape_of(module: nn.Module) -> NetworkShape | None:
    """Return the shapes of a module of the zoo in the terms of dpkernels, or None."""
    import dpkernels

    if type(module) is Conv4:
        return dpkernels.Conv4Shape(
            module.image_shape, module.filters, module.ways, module.normalisation
        )
    if type(module) is Cnn:
        return dpkernels.CnnShape(
            module.image_shape,
            module.classes,
            module.pixel_mean,
            module.pixel_deviation,
        )
    if type(module) is LinearHead:
        linear = module.linear
        return dpkernels.LinearShape(
            module.inputs, linear.out_features, linear.bias is not None
        )
    if type(module) is Lstm:
        return dpkernels.LstmShape(
            (module.record,), module.words, module.width, module.layers, module.tied
        )
    return None


def add_rows(
    rows: np.ndarray, limit: float, total: np.ndarray, norms: np.ndarray
) -> None:
    """Add rows to a sum, each scaled down to an L2 norm of at most `limit`.

    Args:
        rows: float32 [n, d], contiguous. A row that is not finite counts as zero.
        limit: the clipping threshold.
        total: float64 [d], to which the clipped rows are added one after another.
        norms: float64 [n], set to the norms before clipping.
    """
    add = private_sum.add_rows
    if is_installed():
        from dpkernels.clipped_sum import add_rows as add
    add(rows, limit, total, norms)


def processor() -> str:
    """Return the kind of processor, on which the bits of a result depend.

    With dpkernels it includes the microarchitecture for which the loops are compiled,
    for example "x86_64 znver4". Without dpkernels it is the architecture alone.
    """
    if is_installed():
        from dpkernels.compiled import processor as compiled_for

        return compiled_for()
    return platform.machine()


def versions_of(*packages: str) -> dict[str, str]:
    """Return the versions of packages and of Python, on which results depend."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    return versions | {"python": platform.python_version()}


def load_compiled() -> None:
    """Read all compiled loops of dpkernels from their cache, if it is installed.

    It compiles nothing.
    """
    if is_installed():
        from dpkernels.compiled import load_all

        load_all()


@functools.cache
def is_installed() -> bool:
    """Return whether dpkernels can be imported."""
    try:
        return importlib.util.find_spec("dpkernels") is not None
    except ValueError:  # a test has replaced the module by None
        return False
