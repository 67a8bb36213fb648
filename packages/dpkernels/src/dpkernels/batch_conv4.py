"""Conv-4 for one task on a CPU: loss, gradient and Hessian-vector product.

The passes are written by hand. A task's batch has a few small images, so automatic
differentiation spends most of its time on allocation, dispatch and memory traffic, and
the second derivative of batch normalisation costs as much as the convolutions. Here
each pass writes into arrays that are allocated once, and convolutions are 16 matrix
products (`winograd`). The Hessian-vector product is the derivative of the gradient's
own passes, so MAML needs no graph across inner steps.

A task is computed by one thread from its own arrays, so results do not depend on
threads or chunking. The values equal those of automatic differentiation up to rounding
(tests/).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpkernels.conv4_passes import Conv4Passes, as_floats, computes
from dpkernels.conv4_room import Images, Points, Steps
from dpkernels.networks import Conv4Shape
from dpkernels.passes import Passes, TaskGradients, check_array


class BatchConv4(Passes):
    """Gradients of a Conv-4 that is normalised over the task's batch.

    The arguments are those of `Passes`.
    """

    name = "conv4-batch"
    network: Conv4Shape

    @staticmethod
    def fits(network: Any, dtype: np.dtype) -> bool:
        """Return whether a Conv-4 normalises over each batch."""
        return network.normalisation == "batch" and computes(network, dtype)

    def __init__(self, network: Conv4Shape, dtype: Any = np.float32) -> None:
        super().__init__(network, dtype)
        self._passes: dict[tuple[int, bool], Conv4Passes] = {}
        self._memory: dict[tuple[int, int], tuple[Steps, Points]] = {}

    @staticmethod
    def tasks_at_once(by_steps: bool) -> int:
        """Return the number of tasks that a thread should compute in one call.

        It is so large that Python's overhead is small. If the steps are computed one by
        one, it is small enough for the cache.
        """
        return 2 if by_steps else 8

    def prepare(self, x: np.ndarray) -> Images:
        images = as_floats(x, self.dtype)
        return self._of(images.shape[1]).images(images)

    def _size_of_tasks(self, x: Images) -> tuple[int, int]:
        return x.padded.shape[0], x.padded.shape[1]

    def _of(self, batch: int, adapted: bool = False) -> Conv4Passes:
        """Return the passes over batches of one size.

        Passes after steps share no memory with the passes of the steps.
        """
        if (batch, adapted) not in self._passes:
            self._passes[batch, adapted] = Conv4Passes(
                self.network, batch, self.dtype.type
            )
        return self._passes[batch, adapted]

    def gradients_through_steps(
        self,
        theta: np.ndarray,
        support: Images,
        support_y: np.ndarray,
        query: Images,
        query_y: np.ndarray,
        rates: np.ndarray,
        *,
        second: bool,
        out: np.ndarray,
    ) -> np.ndarray:
        check_array(theta, (self.network.dimension,), self.dtype)
        self._check_tasks(out, support, support_y)
        self._check_tasks(out, query, query_y)
        sizes = support.padded.shape[1], query.padded.shape[1]
        passes = self._of(sizes[1], adapted=True)
        before, at = self._memory.get(sizes) or (None, passes.points(1))
        steps = self._of(sizes[0]).steps(support, support_y, rates, second, before)
        self._memory[sizes] = steps, at
        losses, _ = passes.gradients(theta[None], query, query_y, at, out, steps)
        return losses.mean(axis=1).astype(np.float64)

    def _task_gradients(
        self,
        theta: np.ndarray,
        x: Images,
        y: np.ndarray,
        out: np.ndarray,
        products: bool,
        before: TaskGradients | None,
    ) -> TaskGradients:
        passes = self._of(x.padded.shape[1])
        points = None
        if (
            isinstance(before, BatchTasks)
            and before.passes is passes
            and len(before.points.floats) == len(theta)
        ):
            points = before.points
        return BatchTasks(passes, theta, x, y, out, points)

    def logits(self, theta: np.ndarray, x: Images) -> np.ndarray:
        passes = self._of(x.padded.shape[1])
        return passes.logits(theta, x, passes.points(1))


class BatchTasks(TaskGradients):
    """Tasks, each with its own parameters.

    These must not change before the products are computed.
    """

    has_products = True

    def __init__(
        self,
        passes: Conv4Passes,
        theta: np.ndarray,
        images: Images,
        labels: np.ndarray,
        out: np.ndarray,
        points: Points | None,
    ) -> None:
        self.passes = passes
        self._theta = theta
        self._images = images
        self.points = passes.points(len(theta)) if points is None else points
        losses, _ = passes.gradients(theta, images, labels, self.points, out)
        self.losses = losses.mean(axis=1).astype(np.float64)

    def product(self, direction: np.ndarray, out: np.ndarray) -> None:
        for array in (direction, out):
            check_array(array, self._theta.shape, self._theta.dtype)
        self.passes.hessian_products(
            self._theta, self._images, direction, self.points, out
        )
