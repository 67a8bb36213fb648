"""Conv-4 normalised within each record: the gradients of single records, on one CPU thread.

The passes are those of `fused_conv4`, over a few records at a time, with moments of each record by itself and with the
weights' products taken record by record. A record's gradient depends on its own image and label and on nothing else,
and keeps its bits whatever the others hold.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from dpfedbench.models import winograd
from dpfedbench.models.conv4 import NORMALISATION_EPSILON, Conv4
from dpfedbench.models.fused_conv4 import Evaluation, FusedConv4, Images, _FirstLayer, _Layer, _Products

_TOGETHER = 10
"""Records of one pass: enough to outweigh the calls, few enough for the processor's cache."""


class _RecordImages(Images):
    """Images [B, H, W, C] with the moments of each image's own 3x3 patches."""

    def __init__(self, x: np.ndarray) -> None:
        batch, height, width, channels = x.shape
        self.shape = (height, width, channels)
        self.padded = np.zeros((batch, height + 2, width + 2, channels), x.dtype)
        self.padded[:, 1:-1, 1:-1] = x
        patches = np.empty((batch, height * width, 9 * channels), x.dtype)
        self.mean = np.empty((batch, 9 * channels), x.dtype)
        for image in range(batch):
            winograd.patches_of_images(self.padded[image : image + 1], self.mean[image], patches[image])
        self.covariance = patches.transpose(0, 2, 1) @ patches / x.dtype.type(height * width)


class _RecordFirstLayer(_FirstLayer):
    """The first layer with moments, folded weights and gradients of each record."""

    def __init__(self, net: Conv4, batch: int, dtype: np.dtype) -> None:
        height, width, channels = net.image_shape
        self.window = np.empty((4, net.filters), dtype)
        self.code = np.empty((batch, (height // 2) * (width // 2), net.filters), np.uint8)
        self.weights_gradient = np.empty((batch, 9 * channels, net.filters), dtype)
        self.shift_gradient = np.empty((batch, net.filters), dtype)
        self.eps = dtype.type(NORMALISATION_EPSILON)

    def forward(
        self, images: Images, out: np.ndarray, weight: np.ndarray, scale: np.ndarray, shift: np.ndarray
    ) -> None:
        self.weight = weight
        self.spread = images.covariance @ weight
        self.mean = images.mean @ weight
        self.inverse_std = 1 / np.sqrt((weight * self.spread).sum(1) + self.eps)
        self.gain = scale * self.inverse_std
        folded, shifts = weight * self.gain[:, None], shift - self.gain * self.mean
        for record in range(len(self.code)):
            one = slice(record, record + 1)
            winograd.first_layer(
                images.padded[one], folded[record], shifts[record], self.window, out[one], self.code[record]
            )

    def backward(self, images: Images, padded: np.ndarray, gradients: tuple[np.ndarray, ...]) -> None:
        for record in range(len(self.code)):
            one = slice(record, record + 1)
            winograd.first_layer_gradient(
                images.padded[one], padded[one], self.code[record], self.window, self.weights_gradient[record],
                self.shift_gradient[record],
            )  # fmt: skip
        weight, scale, shift = gradients
        moment = (self.weight * self.weights_gradient).sum(1) - self.mean * self.shift_gradient
        centred = self.weights_gradient - images.mean[:, :, None] * self.shift_gradient[:, None]
        pull = self.gain * self.inverse_std * self.inverse_std * moment
        weight[:] = self.gain[:, None] * centred - pull[:, None] * self.spread
        scale[:] = self.inverse_std * moment
        shift[:] = self.shift_gradient


class _RecordEvaluation(Evaluation):
    """One evaluation at a few records, each normalised by itself."""

    def __init__(self, net: Conv4, batch: int, dtype: np.dtype) -> None:
        height, width, _ = net.image_shape
        self.first = _RecordFirstLayer(net, batch, dtype)
        self.layers = []
        for _ in range(3):
            height, width = height // 2, width // 2
            self.layers.append(_Layer(batch, (height, width), net.filters, net.filters, dtype, groups=batch))
        self.features = np.zeros((batch, height // 2 + 2, width // 2 + 2, net.filters), dtype)


class _Batch(FusedConv4):
    """Passes over a fixed number of records."""

    def __init__(self, net: Conv4, batch: int, dtype: type) -> None:
        super().__init__(net, batch, dtype)
        self.at = self.evaluation()
        self._weight_gradients = _Products(batch * net.filters, net.filters, self.dtype)
        self._taps = torch.empty((9, batch, net.filters**2), dtype=self._weight_gradients.tensor.dtype)

    def evaluation(self) -> Evaluation:
        """A new place for an evaluation to be stored in."""
        return _RecordEvaluation(self.net, self.batch, self.dtype)

    def gradients(self, theta: np.ndarray, x: np.ndarray, labels: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Each record's gradient to `out` [B, d]; losses and hits [B, 2]."""
        at, images = self.at, _RecordImages(x)
        logits = self.logits(theta, images, at)
        shifted = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        totals = exponentials.sum(axis=1, keepdims=True)
        rows = np.arange(self.batch)
        residual = exponentials / totals
        residual[rows, labels] -= 1
        blocks = self._views(out)
        np.multiply(at.flat[:, :, None], residual[:, None, :], out=blocks[4][0])
        blocks[4][1][:] = residual
        inside = self._feature_gradient[:, 1:-1, 1:-1]
        inside[:] = (residual @ at.blocks[4][0].T).reshape(inside.shape)
        padded = self._feature_gradient
        for index in (2, 1, 0):
            padded = self._layer_backward(index, padded, blocks[index + 1])
        at.first.backward(images, padded, blocks[0])
        losses = np.log(totals[:, 0]) - shifted[rows, labels]
        return np.stack([losses, logits.argmax(axis=1) == labels], axis=1).astype(np.float64)

    def _layer_backward(self, index: int, padded: np.ndarray, gradients: tuple[np.ndarray, ...]) -> np.ndarray:
        """Write a later layer's gradients of each record; returns the gradient in its padded inputs."""
        layer, scratch = self.at.layers[index], self._scratch[index]
        weight, scale, shift = gradients
        plane = (layer.height, layer.width)
        winograd.pooled_gradient(
            padded, layer.code, layer.selected, *plane, layer.delta, layer.shift_gradient, layer.scale_gradient
        )
        shift[:], scale[:] = layer.shift_gradient, layer.scale_gradient
        winograd.gradient_tiles(
            layer.z, *plane, layer.batch, layer.mean, layer.inverse_std, self.at.blocks[index + 1][1], layer.code,
            layer.delta, layer.shift_gradient, layer.scale_gradient, layer.gradients.array,
        )  # fmt: skip
        filters, each = self.net.filters, 16 * self.batch
        # A record's tiles lie side by side, so that each record has its own 16 products.
        inputs, outputs = (part.tensor.view(each, -1, filters) for part in (layer.inputs, layer.gradients))
        torch.bmm(inputs.mT, outputs, out=self._weight_gradients.tensor.view(each, filters, filters))
        torch.mm(scratch.transform.T, self._weight_gradients.tensor.view(16, -1), out=self._taps.view(9, -1))
        torch.from_numpy(weight.reshape(self.batch, 9, -1)).copy_(self._taps.transpose(0, 1))
        transposed = scratch.weights_transposed.copy_(layer.weights.tensor.mT)
        torch.bmm(layer.gradients.tensor, transposed, out=scratch.input_gradients.tensor)
        winograd.input_gradient_of_tiles(scratch.input_gradients.array, scratch.tile, scratch.padded_gradient)
        return scratch.padded_gradient

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

    def pieces(
        self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray, room: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Losses [k] and gradients of the next k records, in the first rows of the room [m, d], as `FusedCnn.pieces`.

        Shapes: theta [d], images uint8 [n, H, W, C], labels [n].
        """
        for start in range(0, len(images), len(room)):
            some = images[start : start + len(room)].astype(np.float32) / np.float32(255)
            rows = room[: len(some)]
            yield self.gradients(theta, some, labels[start : start + len(room)], rows)[:, 0], rows

    def logits(self, theta: np.ndarray, images: np.ndarray) -> np.ndarray:
        """Logits [n, ways] of images [n, H, W, C]."""
        rows = []
        for start in range(0, len(images), _TOGETHER):
            some = images[start : start + _TOGETHER]
            batch = self._batch(len(some))
            rows.append(batch.logits(theta, _RecordImages(some), batch.at))
        return np.concatenate(rows)
