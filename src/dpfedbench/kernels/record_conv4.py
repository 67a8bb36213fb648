"""Conv-4 normalised within each record: the gradients of single records, on one CPU thread.

The passes are `conv4_passes`, over a few records at a time: each is a group by itself, and the weights' products are
taken record by record. A record's gradient depends on its own image and label and on nothing else,
and keeps its bits whatever the others hold.
"""

from __future__ import annotations

import numpy as np
import torch

from dpfedbench.kernels.conv4_passes import Images, Layer, Passes, Products, as_floats, views
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.gradients import Found, Inputs, Means, Point
from dpfedbench.models.net import Array, Net
from dpfedbench.models.torch_gradients import TorchGradients

_TOGETHER = 10
"""Records of one pass: enough to outweigh the calls, few enough for the processor's cache."""


class _Batch(Passes):
    """Passes over a fixed number of records, each a group by itself."""

    def __init__(self, net: Conv4, batch: int, dtype: type) -> None:
        super().__init__(net, batch, dtype, groups=batch)
        self.at = self.evaluation()
        self._weight_gradients = Products(batch * net.filters, net.filters, self.dtype)
        self._taps = torch.empty((9, batch, net.filters**2), dtype=self._weight_gradients.tensor.dtype)

    def logits_of(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Logits [B, ways] of images [B, H, W, C]."""
        return self.logits(theta, Images(x, groups=self.batch), self.at)

    def gradients(self, theta: np.ndarray, x: np.ndarray, labels: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Each record's gradient to `out` [B, d]; losses and hits [B, 2]."""
        at, images = self.at, Images(x, groups=self.batch)
        logits = self.logits(theta, images, at)
        losses, residual = self.softmax(logits, labels)
        residual[np.arange(self.batch), labels] -= 1
        blocks = self._views(out)
        np.multiply(at.flat[:, :, None], residual[:, None, :], out=blocks[4][0])
        blocks[4][1][:] = residual
        self.backward(images, at, residual, blocks)
        return np.stack([losses, logits.argmax(axis=1) == labels], axis=1).astype(np.float64)

    def weight_gradient(self, layer: Layer, out: np.ndarray) -> None:
        """Gradient of each record's loss in a later layer's weights."""
        filters, each = self.net.filters, 16 * self.batch
        # A record's tiles lie side by side, so that each record has its own 16 products.
        inputs, outputs = (part.tensor.view(each, -1, filters) for part in (layer.inputs, layer.gradients))
        torch.bmm(inputs.mT, outputs, out=self._weight_gradients.tensor.view(each, filters, filters))
        self.untransform_gradients(self._weight_gradients, self._taps)
        torch.from_numpy(out.reshape(self.batch, 9, -1)).copy_(self._taps.transpose(0, 1))

    def _views(self, out: np.ndarray) -> list[tuple[np.ndarray, ...]]:
        """`conv4_passes.views` of each row of `out` [B, d]."""
        found, start = [], 0
        for part in (part for block in views(out[0], self.net) for part in block):
            found.append(out[:, start : start + part.size].reshape(self.batch, *part.shape))
            start += part.size
        return [tuple(found[3 * block : 3 * block + 3]) for block in range(4)] + [tuple(found[12:])]


class RecordConv4(TorchGradients):
    """Gradients of a Conv-4 that is normalised within each record; arguments are those of `Gradients`."""

    name = "conv4-record"

    def __init__(self, net: Net, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(net, dtype=dtype)
        self._batches: dict[int, _Batch] = {}

    def _together(self) -> int:
        return _TOGETHER

    def _batch(self, records: int) -> _Batch:
        if records not in self._batches:
            assert isinstance(self.net.module, Conv4)
            self._batches[records] = _Batch(self.net.module, records, self.number.type)
        return self._batches[records]

    def _each(self, theta: Array, x: Array, y: Array, out: Array) -> Found:
        found, own, labels, rows = np.empty((len(y), 2)), np.asarray(theta), np.asarray(y), np.asarray(out)
        for start in range(0, len(labels), _TOGETHER):
            some = slice(start, min(start + _TOGETHER, len(labels)))
            images = as_floats(x[some], self.number)
            found[some] = self._batch(len(images)).gradients(own, images, labels[some], rows[some])
        return _found(*found.T)

    def _prepared(self, x: Array) -> np.ndarray:
        return as_floats(x, self.number)

    def _at(self, theta: Array, x: Inputs, y: Array, products: bool, into: Point | None) -> Point:
        return _Tasks(self, np.asarray(theta), x.value, np.asarray(y))

    def _logits(self, theta: Array, x: Inputs) -> np.ndarray:
        return np.stack([self._logits_of(own, some) for own, some in zip(np.asarray(theta), x.value, strict=True)])

    def _logits_of(self, theta: np.ndarray, x: Array) -> np.ndarray:
        rows = []
        for start in range(0, len(x), _TOGETHER):
            some = as_floats(x[start : start + _TOGETHER], self.number)
            rows.append(self._batch(len(some)).logits_of(theta, some))
        return np.concatenate(rows or [np.empty((0, self.net.outputs), self.number)])

    def _evaluate(self, theta: Array, x: Array, y: Array) -> Found:
        logits, labels = self._logits_of(np.asarray(theta), x).astype(np.float64), np.asarray(y)
        shifted = logits - logits.max(axis=1, keepdims=True)
        losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]
        return _found(losses, logits.argmax(axis=1) == labels)


class _Tasks(Means):
    """Tasks; a gradient is the mean of its records' own, and products are torch's."""

    def __init__(self, owner: RecordConv4, theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__(theta)
        self._owner, self._at = owner, (theta.copy(), x, y)
        self._means, self._found = np.empty_like(theta), []
        rows = np.empty((x.shape[1], theta.shape[1]), theta.dtype)
        for own, images, labels, mean in zip(theta, x, y, self._means, strict=True):
            self._found.append(owner._each(own, images, labels, rows))
            mean[:] = rows.mean(axis=0, dtype=np.float64)

    def _product(self, direction: Array, out: Array) -> None:
        theta, x, y = self._at
        inputs = Inputs(x.shape, TorchGradients._prepared(self._owner, x))
        point = TorchGradients._at(self._owner, theta, inputs, y, True, None)
        point.gradient(np.empty_like(theta))
        point.product(direction, out)


def _found(losses: np.ndarray, right: np.ndarray) -> Found:
    return Found(losses, right.astype(np.float64), np.ones(len(losses)))
