"""A cohort's contributions as a stream: memory grows with the chunk, never with the cohort."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch

from dpfedbench.federation.composition import Maml
from dpfedbench.kernels import choose
from dpfedbench.models.gradients import Workers
from dpfedbench.models.meta_gradient import MetaGradient
from dpfedbench.models.net import Net


class Tasks(Protocol):
    """A chunk of tasks: images float32 [n, examples, H, W, C], labels int64 [n, examples]."""

    @property
    def support_x(self) -> np.ndarray: ...
    @property
    def support_y(self) -> np.ndarray: ...
    @property
    def query_x(self) -> np.ndarray: ...
    @property
    def query_y(self) -> np.ndarray: ...


Gather = Callable[[np.ndarray], Tasks]
"""Client ids [n] to their tasks."""

_Futures = list[concurrent.futures.Future[tuple[np.ndarray, np.ndarray]]]


class Contributions:
    """Computes what the clients of a cohort send.

    Args:
        net: the network.
        maml: the client update.
        threads: CPU threads to use.
        device: "cpu" or a CUDA device.
        kernels: whether hand-written passes may be used.
    """

    def __init__(self, net: Net, maml: Maml, *, threads: int = 1, device: str = "cpu", kernels: bool = True) -> None:
        self.net = net
        self._workers = Workers(
            choose(net, device=device, enabled=kernels),
            lambda gradients: MetaGradient(gradients, steps=maml.inner_steps, rate=maml.inner_rate, order=maml.order),
            threads=threads,
        )

    def stream(
        self, theta: np.ndarray, cohort: np.ndarray, gather: Gather, weights: np.ndarray | None = None
    ) -> Iterator[tuple[torch.Tensor, np.ndarray, np.ndarray]]:
        """Yield (contributions float32 [n, d], query losses [n], query accuracies [n]), in the cohort's order.

        `weights` are those of the query loss after each step (`Maml.step_weights`).
        A yielded tensor is overwritten two chunks later.
        """
        workers, chunk = self._workers, self._workers.chunk
        buffers = [torch.empty((min(chunk, len(cohort)), self.net.dimension), device=workers.device) for _ in range(2)]
        with workers.running() as pool:
            waiting = None
            for index, start in enumerate(range(0, len(cohort), chunk)):
                tasks, out = gather(cohort[start : start + chunk]), buffers[index % 2]
                count = len(tasks.support_y)

                def some(part: slice, tasks: Tasks = tasks, out: torch.Tensor = out) -> tuple[np.ndarray, np.ndarray]:
                    with workers.worker() as worker:
                        return worker.contribution(
                            theta, tasks.support_x[part], tasks.support_y[part], tasks.query_x[part],
                            tasks.query_y[part], out[part], weights,
                        )  # fmt: skip

                started = out[:count], [pool.submit(some, part) for part in workers.split(count)]
                if waiting is not None:
                    yield self._collect(*waiting)
                waiting = started
            if waiting is not None:
                yield self._collect(*waiting)

    @staticmethod
    def _collect(rows: torch.Tensor, futures: _Futures) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        found = [future.result() for future in futures]
        return rows, np.concatenate([losses for losses, _ in found]), np.concatenate([right for _, right in found])
