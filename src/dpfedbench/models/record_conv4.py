"""Conv-4 normalised within each record: the gradient of each record by itself, on one CPU thread.

Normalisation over a batch of one image is normalisation within it, so this is `FusedConv4` for one image at a time: a
record's gradient is computed from its own image and label and nothing else, and keeps its bits whatever the others are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.fused_conv4 import FusedConv4, Images


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
        self.net = net
        self._one = FusedConv4(net, 1, dtype)
        self._at = self._one.evaluation()

    def gradients(self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write each record's gradient to `out` [n, d]; returns losses and hits, float64 [n, 2].

        Shapes: theta [d], images [n, H, W, C], labels [n].
        """
        found = np.empty((len(labels), 2))
        for record in range(len(labels)):
            image = Images(images[record : record + 1])
            found[record] = self._one.loss(theta, image, labels[record : record + 1], self._at)
            self._one.gradient(image, self._at, out[record])
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
        rows = [self._one.logits(theta, Images(image[None]), self._at)[0].copy() for image in images]
        return np.stack(rows)
