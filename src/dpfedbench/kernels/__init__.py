"""Hand-written passes of some networks on a CPU: implementations of `models.gradients`,
chosen where they fit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from dpfedbench.kernels.cells import CellGradients
from dpfedbench.kernels.linear import LinearHeadGradients
from dpfedbench.kernels.lstm import FastLstm
from dpfedbench.models.cnn import Cnn
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.darts import GenotypeNet, SearchNet
from dpfedbench.models.gradients import Choice, Gradients
from dpfedbench.models.linear import LinearHead
from dpfedbench.models.lstm import Lstm
from dpfedbench.models.net import Net
from dpfedbench.models.torch_gradients import TorchGradients


def choose(
    net: Net,
    *,
    device: str = "cpu",
    enabled: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Choice:
    """The implementation of a network's gradients: a kernel where one fits, else torch.

    Args:
        net: the network.
        device: "cpu" or a CUDA device.
        enabled: false: torch, whatever fits.
        dtype: float32, or float64 for tests.

    Raises:
        BenchError: torch is to be used, and the module cannot be (`Net.check`).
    """
    kernel = _kernel(net, dtype) if enabled and device == "cpu" else None
    if kernel is not None:
        return Choice(
            kernel.name,
            functools.partial(kernel, net, dtype=dtype),
            device,
            kernel.tasks(net),
        )
    make: Callable[[], Gradients] = functools.partial(
        TorchGradients, net, device=device, dtype=dtype
    )
    return Choice(TorchGradients(net, device=device, dtype=dtype).way, make, device)


def _kernel(net: Net, dtype: torch.dtype) -> type[TorchGradients] | None:
    # The kernels that numba compiles are imported here: it takes a second to load.
    if type(net.module) is Conv4:
        from dpfedbench.kernels.batch_conv4 import BatchConv4
        from dpfedbench.kernels.record_conv4 import RecordConv4

        return BatchConv4 if net.module.normalisation == "batch" else RecordConv4
    if type(net.module) is Cnn and dtype == torch.float32:
        from dpfedbench.kernels.fused_cnn import FusedCnn

        return FusedCnn
    if type(net.module) is LinearHead:
        return LinearHeadGradients
    if type(net.module) is Lstm:
        return FastLstm
    if type(net.module) in (SearchNet, GenotypeNet):
        return CellGradients
    return None
