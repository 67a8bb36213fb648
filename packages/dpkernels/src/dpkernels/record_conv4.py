"""Conv-4 normalised within each record: gradients of single records.

It uses one CPU thread. The passes are those of `conv4_passes`, over a few records at a
time. Each record is its own group, and the weights' products are computed record by
record. A record's gradient depends only on its own image and label, and keeps its bits
whatever the other records are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpkernels.batch_conv4 import BatchTasks
from dpkernels.conv4_passes import Conv4Passes, as_floats, computes
from dpkernels.conv4_room import Points
from dpkernels.networks import Conv4Shape
from dpkernels.passes import Measures, Passes, TaskGradients

_TOGETHER = 10
"""Number of records of one pass.

It outweighs the overhead of calls, and the records fit into the processor's cache.
"""


class RecordConv4(Passes):
    """Gradients of a Conv-4 that is normalised within each record.

    The arguments are those of `Passes`.
    """

    name = "conv4-record"
    records_at_once = _TOGETHER
    network: Conv4Shape

    @staticmethod
    def fits(network: Any, dtype: np.dtype) -> bool:
        """Return whether a Conv-4 normalises within each record."""
        return network.normalisation == "record" and computes(network, dtype)

    def __init__(self, network: Conv4Shape, dtype: Any = np.float32) -> None:
        super().__init__(network, dtype)
        self._passes: dict[int, tuple[Conv4Passes, Points]] = {}

    def _batches(
        self, x: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, Conv4Passes, Points]]:
        """Yield the records [n, ...] of each pass: their slice, and floats [1, B, ...]."""
        for start in range(0, len(x), _TOGETHER):
            records = slice(start, min(start + _TOGETHER, len(x)))
            size = records.stop - start
            if size not in self._passes:
                passes = Conv4Passes(
                    self.network, size, self.dtype.type, by_record=True
                )
                self._passes[size] = passes, passes.points(1)
            yield records, as_floats(x[records], self.dtype)[None], *self._passes[size]

    def _record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        losses = np.empty(len(y))
        for records, x_some, passes, at in self._batches(x):
            images = passes.images(x_some)
            (losses[records],), _ = passes.gradients(
                theta[None], images, y[records][None], at, out[records]
            )
        return losses

    def prepare(self, x: np.ndarray) -> np.ndarray:
        return as_floats(x, self.dtype)

    def _task_gradients(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        out: np.ndarray,
        products: bool,
        before: TaskGradients | None,
    ) -> TaskGradients:
        if products and x.shape[1] == 1:
            # For a batch of one record both kinds of normalisation are equal.
            passes = self._single_passes
            return BatchTasks(passes, theta, passes.images(x), y, out, None)
        return _Tasks(self, theta, x, y, out)

    @functools.cached_property
    def _single_passes(self) -> Conv4Passes:
        """Passes over tasks of one record each."""
        return Conv4Passes(self.network, 1, self.dtype.type)

    def logits(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.stack(
            [
                self._logits_of(weights, images)
                for weights, images in zip(theta, x, strict=True)
            ]
        )

    def _logits_of(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        rows = [
            passes.logits(theta[None], passes.images(images), at)[0]
            for _, images, passes, at in self._batches(x)
        ]
        return np.concatenate(rows or [np.empty((0, self.network.outputs), self.dtype)])

    def _evaluate(self, theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> Measures:
        logits = self._logits_of(theta, x).astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]
        right = (logits.argmax(axis=1) == y).astype(np.float64)
        return Measures(losses, right, np.ones(len(losses)))


class _Tasks(TaskGradients):
    """Tasks whose gradients are means of records' gradients, without products."""

    def __init__(
        self,
        owner: RecordConv4,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        out: np.ndarray,
    ) -> None:
        rows = np.empty((x.shape[1], theta.shape[1]), theta.dtype)
        losses = []
        for weights, images, labels, mean in zip(theta, x, y, out, strict=True):
            record_losses = owner._record_gradients(weights, images, labels, rows)
            losses.append(record_losses.mean())
            mean[:] = rows.mean(axis=0, dtype=np.float64)
        self.losses = np.array(losses)
