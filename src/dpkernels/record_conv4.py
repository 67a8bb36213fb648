"""Conv-4 normalised within each record: gradients of single records.

It uses one CPU thread. The passes are those of `conv4_passes`, over a few records at a
time. Each record is its own group, and the weights' products are computed record by
record. A record's gradient depends only on its own image and label, and keeps its bits
whatever the other records are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import torch

from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.gradients import Gradients, Inputs, Measured
from dpfedbench.models.net import Array, Net
from dpfedbench.models.points import Point
from dpkernels.batch_conv4 import BatchTasks
from dpkernels.conv4_passes import Conv4Passes, as_floats
from dpkernels.conv4_room import Points

_TOGETHER = 10
"""Number of records of one pass.

It outweighs the overhead of calls, and the records fit into the processor's cache.
"""


class RecordConv4(Gradients):
    """Gradients of a Conv-4 that is normalised within each record.

    The arguments are those of `Gradients`.
    """

    name = "conv4-record"

    @staticmethod
    def fits(net: Net, dtype: torch.dtype) -> bool:
        """Return whether a Conv-4 normalises within each record."""
        return net.module.normalisation == "record"

    def __init__(self, net: Net, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(net, dtype=dtype)
        self._passes: dict[int, tuple[Conv4Passes, Points]] = {}

    def _together(self) -> int:
        return _TOGETHER

    def _batches(
        self, x: Array
    ) -> Iterator[tuple[slice, np.ndarray, Conv4Passes, Points]]:
        """Yield the records [n, ...] of each pass: their slice, and floats [1, B, ...]."""
        for start in range(0, len(x), _TOGETHER):
            records = slice(start, min(start + _TOGETHER, len(x)))
            size = records.stop - start
            if size not in self._passes:
                assert isinstance(self.net.module, Conv4)
                passes = Conv4Passes(
                    self.net.module, size, self.number.type, by_record=True
                )
                self._passes[size] = passes, passes.points(1)
            yield records, as_floats(x[records], self.number)[None], *self._passes[size]

    def _record_gradients(
        self, theta: Array, x: Array, y: Array, out: Array, block: str = ""
    ) -> np.ndarray:
        weights = np.asarray(theta)[None]
        labels = np.asarray(y)
        rows = np.asarray(out)
        losses = np.empty(len(labels))
        for records, x_some, passes, at in self._batches(x):
            images = passes.images(x_some)
            (losses[records],), _ = passes.gradients(
                weights, images, labels[records][None], at, rows[records]
            )
        return losses

    def _prepared(self, x: Array) -> np.ndarray:
        return as_floats(x, self.number)

    def _task_gradients(
        self,
        theta: Array,
        x: Inputs,
        y: Array,
        out: Array,
        products: bool,
        into: Point | None,
    ) -> Point:
        weights = np.asarray(theta)
        labels = np.asarray(y)
        rows = np.asarray(out)
        if products and x.shape[1] == 1:
            # For a batch of one record both kinds of normalisation are equal.
            passes = self._single_passes
            images = passes.images(x.value)
            return BatchTasks(passes, weights, images, labels, rows, None)
        return _Tasks(self, weights, x.value, labels, rows)

    @functools.cached_property
    def _single_passes(self) -> Conv4Passes:
        """Passes over tasks of one record each."""
        assert isinstance(self.net.module, Conv4)
        return Conv4Passes(self.net.module, 1, self.number.type)

    def _logits(self, theta: Array, x: Inputs) -> np.ndarray:
        return np.stack(
            [
                self._logits_of(weights, images)
                for weights, images in zip(np.asarray(theta), x.value, strict=True)
            ]
        )

    def _logits_of(self, theta: np.ndarray, x: Array) -> np.ndarray:
        rows = [
            passes.logits(theta[None], passes.images(images), at)[0]
            for _, images, passes, at in self._batches(x)
        ]
        return np.concatenate(rows or [np.empty((0, self.net.outputs), self.number)])

    def _evaluate(self, theta: Array, x: Array, y: Array) -> Measured:
        logits = self._logits_of(np.asarray(theta), x).astype(np.float64)
        labels = np.asarray(y)
        shifted = logits - logits.max(axis=1, keepdims=True)
        losses = (
            np.log(np.exp(shifted).sum(axis=1))
            - shifted[np.arange(len(labels)), labels]
        )
        right = (logits.argmax(axis=1) == labels).astype(np.float64)
        return Measured(losses, right, np.ones(len(losses)))


class _Tasks(Point):
    """Tasks, whose gradients are means of records' gradients.

    torch computes Hessian products.
    """

    def __init__(
        self,
        owner: RecordConv4,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        out: np.ndarray,
    ) -> None:
        super().__init__(theta)
        self._owner = owner
        self._at = (theta.copy(), x, y)
        rows = np.empty((x.shape[1], theta.shape[1]), theta.dtype)
        losses = []
        for weights, images, labels, mean in zip(theta, x, y, out, strict=True):
            record_losses = owner._record_gradients(weights, images, labels, rows)
            losses.append(record_losses.mean())
            mean[:] = rows.mean(axis=0, dtype=np.float64)
        self.losses = np.array(losses)

    def _product(self, direction: Array, out: Array) -> None:
        theta, x, y = self._at
        inputs = Inputs(x.shape, Gradients._prepared(self._owner, x))
        Gradients._task_gradients(
            self._owner, theta, inputs, y, np.empty_like(theta), True, None
        ).product(direction, out)
