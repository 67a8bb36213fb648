"""Choice of the implementation that computes a network's gradients."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from typing import NamedTuple

import torch

from dpfedbench.errors import BenchError
from dpfedbench.models import kernels
from dpfedbench.models.cell_gradients import CellGradients
from dpfedbench.models.darts import GenotypeNet, SearchNet
from dpfedbench.models.gradients import Gradients
from dpfedbench.models.kernel_gradients import KernelGradients
from dpfedbench.models.net import Net

TASKS_ON_GPU = 256
"""Number of tasks that a GPU gets at once."""


class Choice(NamedTuple):
    """An implementation for a network on a device.

    `name` is recorded by the run. `make` creates an instance. `tasks` is the number of
    tasks that a CPU thread or a GPU gets at once; on a CPU no bit of a result depends
    on it.
    """

    name: str
    make: Callable[[], Gradients]
    device: str
    tasks: int = 1

    def chunk(self, threads: int) -> int:
        """Return the number of tasks to gather at once, for threads or for a GPU."""
        return 8 * max(1, threads) if self.device == "cpu" else self.tasks


def choose(
    net: Net,
    *,
    device: str = "cpu",
    enabled: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Choice:
    """Return the implementation of a network's gradients: hand-written or torch's.

    Args:
        net: the network.
        device: "cpu" or a CUDA device. Hand-written passes exist for "cpu" only.
        enabled: whether hand-written passes may be used.
        dtype: type of the weights: float32, or float64 for tests.

    Raises:
        BenchError: torch has to compute the gradients and cannot use the module
            (`Net.check`).
    """
    if enabled and device == "cpu":
        if type(net.module) in (SearchNet, GenotypeNet):
            cells = functools.partial(CellGradients, net, dtype=dtype)
            return Choice(CellGradients.name, cells, device)
        passes_and_shape = kernels.find_passes(net, dtype)
        if passes_and_shape is not None:
            passes, shape = passes_and_shape
            kernel = functools.partial(KernelGradients, net, passes, shape, dtype=dtype)
            # With learnt rates `MetaGradient` computes step by step.
            tasks_at_once = passes.tasks_at_once(by_steps=bool(net.extra))
            return Choice(passes.name, kernel, device, tasks_at_once)
    make = functools.partial(Gradients, net, device=device, dtype=dtype)
    tasks = 1 if device == "cpu" else TASKS_ON_GPU
    return Choice(make().way, make, device, tasks)


def device_of(asked: str) -> str:
    """Return the device of training: "cpu" or "cuda".

    "auto" selects a GPU if there is one.

    Raises:
        BenchError: a GPU is asked for and torch finds none.
    """
    if asked == "cuda" and not torch.cuda.is_available():
        raise BenchError(
            f"machine.device is cuda, but torch finds no GPU on {platform.node()}: use"
            " a machine or a node that has one, or set machine.device to auto"
        )
    return "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"
