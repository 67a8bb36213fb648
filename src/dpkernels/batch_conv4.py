"""Conv-4 for one task on a CPU: loss, gradient and Hessian-vector product.

The passes are written by hand. A task's batch has a few small images, so automatic
differentiation spends most of its time on allocation, dispatch and memory traffic, and
the second derivative of batch normalisation costs as much as the convolutions. Here
each pass writes into arrays that are allocated once, and convolutions are 16 matrix
products (`winograd`). The Hessian-vector product is the derivative of the gradient's
own passes, so MAML needs no graph across inner steps (`models.meta_gradient`).

A task is computed by one thread from its own arrays, so results do not depend on
threads or chunking. The values equal those of `models.conv4` under automatic
differentiation up to rounding (tests/dpkernels).
"""

from __future__ import annotations

import numpy as np
import torch

from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.gradients import Gradients, Inputs
from dpfedbench.models.net import Array, Net
from dpfedbench.models.points import Point
from dpkernels.conv4_passes import Conv4Passes, as_floats
from dpkernels.conv4_room import Images, Points, Steps


class BatchConv4(Gradients):
    """Gradients of a Conv-4 that is normalised over the task's batch.

    The arguments are those of `Gradients`.
    """

    name = "conv4-batch"

    @staticmethod
    def fits(net: Net, dtype: torch.dtype) -> bool:
        """Return whether a Conv-4 normalises over each batch."""
        return net.module.normalisation == "batch"

    def __init__(self, net: Net, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(net, dtype=dtype)
        self._passes: dict[tuple[int, bool], Conv4Passes] = {}
        self._memory: dict[tuple[int, int], tuple[Steps, Points]] = {}

    @staticmethod
    def tasks(net: Net) -> int:
        """Return the number of tasks per call.

        It is so large that Python's overhead is small. If rates are learnt, the steps
        are computed one by one, and the number is small enough for the cache.
        """
        return 2 if net.extra else 8

    def _inputs(
        self, theta: Array, x: Array | Inputs, y: Array | None = None
    ) -> Inputs:
        inputs = super()._inputs(theta, x, y)
        if y is not None and tuple(y.shape) != inputs.shape[:2]:
            raise ValueError(
                f"{list(inputs.shape[:2])} images need as many labels, not"
                f" {list(y.shape)}"
            )
        return inputs

    def _prepared(self, x: Array) -> Images:
        images = as_floats(x, self.number)
        return self._of(images.shape[1]).images(images)

    def _of(self, batch: int, adapted: bool = False) -> Conv4Passes:
        """Return the passes over batches of one size.

        Passes after steps share no memory with the passes of the steps.
        """
        if (batch, adapted) not in self._passes:
            assert isinstance(self.net.module, Conv4)
            self._passes[batch, adapted] = Conv4Passes(
                self.net.module, batch, self.number.type
            )
        return self._passes[batch, adapted]

    def through_steps(
        self,
        theta: torch.Tensor,
        support: Inputs,
        support_y: Array,
        query: Inputs,
        query_y: Array,
        rates: torch.Tensor,
        *,
        second: bool,
        out: Array,
    ) -> np.ndarray:
        self._inputs(theta.expand(len(out), -1), support, support_y)
        self._inputs(out, query, query_y)
        sizes = support.shape[1], query.shape[1]
        passes = self._of(sizes[1], adapted=True)
        before, at = self._memory.get(sizes) or (None, passes.points(1))
        steps = self._of(sizes[0]).steps(
            support.value, np.asarray(support_y), rates.numpy(), second, before
        )
        self._memory[sizes] = steps, at
        losses, _ = passes.gradients(
            theta.numpy()[None],
            query.value,
            np.asarray(query_y),
            at,
            np.asarray(out),
            steps,
        )
        return losses.mean(axis=1).astype(np.float64)

    def _task_gradients(
        self,
        theta: Array,
        x: Inputs,
        y: Array,
        out: Array,
        products: bool,
        into: Point | None,
    ) -> Point:
        passes = self._of(x.shape[1])
        points = None
        if (
            isinstance(into, BatchTasks)
            and into.passes is passes
            and len(into.places.floats) == len(theta)
        ):
            points = into.places
        return BatchTasks(
            passes, np.asarray(theta), x.value, np.asarray(y), np.asarray(out), points
        )

    def _logits(self, theta: Array, x: Inputs) -> np.ndarray:
        passes = self._of(x.shape[1])
        return passes.logits(np.asarray(theta), x.value, passes.points(1))


class BatchTasks(Point):
    """Tasks, each with its own point.

    Their weights must not change before their products are computed.
    """

    def __init__(
        self,
        passes: Conv4Passes,
        theta: np.ndarray,
        images: Images,
        labels: np.ndarray,
        out: np.ndarray,
        places: Points | None,
    ) -> None:
        super().__init__(theta)
        self.passes = passes
        self._theta = theta
        self._images = images
        self.places = passes.points(len(theta)) if places is None else places
        losses, _ = passes.gradients(theta, images, labels, self.places, out)
        self.losses = losses.mean(axis=1).astype(np.float64)

    def _product(self, direction: Array, out: Array) -> None:
        self.passes.hessian_products(
            self._theta,
            self._images,
            np.asarray(direction),
            self.places,
            np.asarray(out),
        )
