"""What every fixed map of images is: it reads one image at a time and no data, so that it costs no privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dpfedbench.settings.part import Part, setting

if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    from dpsum.lazy import Lazy

    np, torch = Lazy("numpy"), Lazy("torch")

_TOGETHER = 16
"""Images whose maps are computed at once; of more, what is between two steps does not stay in the cache."""


class Features(Part):
    """Base of the maps. What comes of an image does not depend on any other image, nor on how many there are."""

    place: ClassVar[str] = "dpfedbench.models.features"

    unit_length: bool = setting(
        True, doc="whether each image's features are scaled to length 1 at the end, which reads that image alone"
    )

    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, int, int]:
        """(height, width, channels) of the features of an image of (height, width, channels).

        Raises:
            BenchError: there are none of such images.
        """
        raise NotImplementedError

    def of(self, images: torch.Tensor) -> torch.Tensor:
        """Features float32 [n, channels, height, width] of images float32 [n, channels, height, width] in [0, 1]."""
        raise NotImplementedError

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Features float32 [n, height, width, channels] of images uint8 [n, height, width, channels]."""
        out = np.empty((len(images), *self.shape(images.shape[1:])), np.float32)
        for start in range(0, len(images), _TOGETHER):
            some = torch.from_numpy(np.asarray(images[start : start + _TOGETHER]).astype(np.float32) / 255)
            found = self.of(some.movedim(-1, 1))
            if self.unit_length:
                found = found / torch.linalg.vector_norm(found, dim=(1, 2, 3), keepdim=True).clamp(min=1e-12)
            out[start : start + len(some)] = found.movedim(1, -1).numpy()
        return out
