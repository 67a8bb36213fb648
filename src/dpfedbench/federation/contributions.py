"""A cohort's contributions as a stream: memory grows with the chunk, never with the cohort.

On a CPU each thread computes one task at a time with `FusedMaml`, so the bits of a contribution depend neither on
the number of threads nor on the chunk. On a CUDA device a chunk of tasks is computed at once by torch.func.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch

from dpfedbench.federation.composition import Maml
from dpfedbench.federation.maml import FusedMaml, autodiff_contributions
from dpfedbench.models.conv4 import Conv4
from dpfedbench.threads import Threads

_CHUNK_PER_THREAD = 8


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


class Contributions:
    """Computes what the clients of a cohort send.

    Args:
        net: the network's shapes.
        maml: the client update.
        support, query: images in a client's support and query set.
        threads: CPU threads to use.
        device: "cpu" or a CUDA device.
    """

    def __init__(
        self, net: Conv4, maml: Maml, *, support: int, query: int, threads: int = 1, device: str = "cpu"
    ) -> None:
        self.net, self.maml, self.device = net, maml, device
        self._images = support * maml.inner_steps + query
        if device == "cpu":
            self._threads = Threads(threads, lambda: FusedMaml(net, maml, support=support, query=query))

    @property
    def chunk(self) -> int:
        """Tasks computed at once."""
        if self.device == "cpu":
            return _CHUNK_PER_THREAD * self._threads.count
        free, _ = torch.cuda.mem_get_info(self.device)
        height, width, _ = self.net.image_shape
        # About 40 arrays of the first layer's size are alive for each image in the graph of a second-order step.
        per_task = 40 * 4 * self._images * height * width * self.net.filters
        return int(max(1, min(512, free // 2 // per_task)))

    def stream(
        self, theta: np.ndarray, cohort: np.ndarray, gather: Gather, weights: np.ndarray | None = None
    ) -> Iterator[tuple[torch.Tensor, np.ndarray, np.ndarray]]:
        """Yield (contributions float32 [n, d], query losses [n], query accuracies [n]), in the cohort's order.

        `weights` are those of the query loss after each step (`Maml.step_weights`).
        A yielded tensor is overwritten two chunks later.
        """
        parts = [cohort[start : start + self.chunk] for start in range(0, len(cohort), self.chunk)]
        if self.device != "cpu":
            yield from (self._on_device(theta, gather(ids), weights) for ids in parts)
            return
        buffers = [torch.empty((self.chunk, self.net.dimension)) for _ in range(2)]
        with self._threads.running() as pool:
            waiting = None
            for index, ids in enumerate(parts):
                started = self._start(pool, theta, gather(ids), buffers[index % 2], weights)
                if waiting is not None:
                    yield self._collect(*waiting)
                waiting = started
            if waiting is not None:
                yield self._collect(*waiting)

    def _start(
        self,
        pool: concurrent.futures.Executor,
        theta: np.ndarray,
        tasks: Tasks,
        buffer: torch.Tensor,
        weights: np.ndarray | None,
    ) -> tuple[torch.Tensor, list[concurrent.futures.Future[tuple[float, float]]]]:
        out = buffer.numpy()

        def one(i: int) -> tuple[float, float]:
            with self._threads.worker() as worker:
                return worker.contribution(
                    theta, tasks.support_x[i], tasks.support_y[i], tasks.query_x[i], tasks.query_y[i], out[i], weights
                )

        return buffer, [pool.submit(one, i) for i in range(len(tasks.support_y))]

    @staticmethod
    def _collect(
        buffer: torch.Tensor, futures: list[concurrent.futures.Future[tuple[float, float]]]
    ) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        results = np.array([future.result() for future in futures]).reshape(-1, 2)
        return buffer[: len(futures)], results[:, 0], results[:, 1]

    def _on_device(
        self, theta: np.ndarray, tasks: Tasks, weights: np.ndarray | None
    ) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        arrays = (theta, tasks.support_x, tasks.support_y, tasks.query_x, tasks.query_y)
        start, sx, sy, qx, qy = (torch.as_tensor(array, device=self.device) for array in arrays)
        gradients, losses, accuracies = autodiff_contributions(self.net, self.maml, start, sx, sy, qx, qy, weights)
        return gradients, losses.cpu().numpy(), accuracies.cpu().numpy()
