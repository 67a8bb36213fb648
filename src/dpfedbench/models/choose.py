"""Choice of the implementation that computes a network's gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from dpfedbench.models import kernels
from dpfedbench.models.gradients import Choice, Gradients
from dpfedbench.models.net import Net
from dpfedbench.models.torch_gradients import TorchGradients


def choose(
    net: Net,
    *,
    device: str = "cpu",
    enabled: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Choice:
    """Return the implementation of a network's gradients: a compiled pass or torch.

    Args:
        net: the network.
        device: "cpu" or a CUDA device. Compiled passes exist for "cpu" only.
        enabled: whether compiled passes may be used.
        dtype: type of the weights: float32, or float64 for tests.

    Raises:
        BenchError: torch has to compute the gradients and cannot use the module
            (`Net.check`).
    """
    if enabled and device == "cpu":
        compiled = kernels.find_gradients(net, dtype)
        if compiled is not None:
            make = functools.partial(compiled, net, dtype=dtype)
            return Choice(compiled.name, make, device, compiled.tasks(net))
    make_torch: Callable[[], Gradients] = functools.partial(
        TorchGradients, net, device=device, dtype=dtype
    )
    return Choice(make_torch().way, make_torch, device)  # type: ignore[attr-defined]
