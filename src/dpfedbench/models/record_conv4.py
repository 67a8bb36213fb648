"""Conv-4 normalised within each record: the gradients of single records, on one CPU thread.

The passes are `conv4_passes`, over a few records at a time: each is a group by itself, and the weights' products are
taken record by record. A record's gradient depends on its own image and label and on nothing else,
and keeps its bits whatever the others hold.
"""

from __future__ import annotations

import numpy as np
import torch

from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.conv4_passes import Images, Layer, Passes, Products
from dpfedbench.privacy.private_sum import PlainSum, PrivateSum

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
        """`Conv4.unflatten` of each row of `out` [B, d]."""
        views, start = [], 0
        for part in (part for block in self.net.unflatten(out[0]) for part in block):
            views.append(out[:, start : start + part.size].reshape(self.batch, *part.shape))
            start += part.size
        return [tuple(views[3 * block : 3 * block + 3]) for block in range(4)] + [tuple(views[12:])]


class RecordConv4:
    """Losses, gradients and logits of single records.

    Args:
        net: the network's shapes; normalised within each record.
        dtype: numpy float32, or float64 for tests.

    Not safe for use by two threads at once.
    """

    def __init__(self, net: Conv4, dtype: type = np.float32) -> None:
        if net.normalisation != "record":
            raise ValueError("gradients of single records need a network that is normalised within each record")
        self.net, self._dtype = net, dtype
        self._batches: dict[int, _Batch] = {}
        self._room = np.empty((_TOGETHER, net.dimension), np.float32)

    def _batch(self, records: int) -> _Batch:
        if records not in self._batches:
            self._batches[records] = _Batch(self.net, records, self._dtype)
        return self._batches[records]

    def gradients(self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write each record's gradient to `out` [n, d]; returns losses and hits, float64 [n, 2].

        Shapes: theta [d], images [n, H, W, C], labels [n].
        """
        found = np.empty((len(labels), 2))
        for start in range(0, len(labels), _TOGETHER):
            some = slice(start, min(start + _TOGETHER, len(labels)))
            batch = self._batch(some.stop - start)
            found[some] = batch.gradients(theta, images[some], labels[some], out[some])
        return found

    def add_gradients(
        self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray, total: PlainSum | PrivateSum
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add each record's gradient to a sum over weights, as `FusedCnn.add_gradients`.

        Shapes: theta [d], images uint8 [n, H, W, C], labels [n]; losses [n] and norms [n] are returned.
        """
        losses, norms = np.empty(len(labels)), np.empty(len(labels))
        for start in range(0, len(labels), _TOGETHER):
            some = slice(start, min(start + _TOGETHER, len(labels)))
            x, rows = images[some].astype(np.float32) / np.float32(255), self._room[: some.stop - start]
            losses[some] = self.gradients(theta, x, labels[some], rows)[:, 0]
            norms[some] = total.add(torch.from_numpy(rows))
        return losses, norms

    def logits(self, theta: np.ndarray, images: np.ndarray) -> np.ndarray:
        """Logits [n, ways] of images [n, H, W, C]."""
        rows = []
        for start in range(0, len(images), _TOGETHER):
            some = images[start : start + _TOGETHER]
            rows.append(self._batch(len(some)).logits_of(theta, some))
        return np.concatenate(rows)
