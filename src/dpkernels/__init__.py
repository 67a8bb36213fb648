"""Compiled passes of some networks on a CPU.

They are drop-in implementations of `dpfedbench.models.gradients.Gradients`. dpfedbench
calls one function, `find_gradients`. README.md describes what a compiled pass is, how
it is tested, and how to add one.
"""

from __future__ import annotations

import importlib

import torch

from dpfedbench.models.cnn import Cnn
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.darts import GenotypeNet, SearchNet
from dpfedbench.models.gradients import Gradients
from dpfedbench.models.linear import LinearHead
from dpfedbench.models.lstm import Lstm
from dpfedbench.models.net import Net

PASSES: dict[type[torch.nn.Module], tuple[str, ...]] = {
    Conv4: ("batch_conv4.BatchConv4", "record_conv4.RecordConv4"),
    Cnn: ("fused_cnn.FusedCnn",),
    LinearHead: ("linear.LinearHeadGradients",),
    Lstm: ("lstm.FastLstm",),
    SearchNet: ("cells.CellGradients",),
    GenotypeNet: ("cells.CellGradients",),
}
"""Passes for each class of module, as `file.Class` of this package.

The first pass whose `fits(net, dtype)` is true is used. A file is imported only when
its pass is considered, because numba takes a second to load.
"""


def find_gradients(net: Net, dtype: torch.dtype) -> type[Gradients] | None:
    """Return the compiled implementation of a network's gradients, or None.

    Args:
        net: the network. Subclasses of a module in `PASSES` have no pass.
        dtype: type of the weights.
    """
    for name in PASSES.get(type(net.module), ()):
        file, class_name = name.split(".")
        implementation = getattr(
            importlib.import_module(f"{__name__}.{file}"), class_name
        )
        if implementation.fits(net, dtype):
            return implementation
    return None
