"""Base of fixed feature maps of images.

A map reads one image at a time and no private data, so it costs no privacy.

**Evened directions.** Most of the length of unit-length features lies in their common
mean and in the few directions of largest variance. A gradient's norm, and with it the
noise, is spent there. Take m public records with features x_1 to x_m, their mean a, and
the singular values s_1 >= s_2 >= ... and directions v_1, v_2, ... of the centred rows
x_k - a. Before an image's features x are scaled to length 1 again, they become

    x - a - sum over i <= r of (1 - sqrt(s_r / s_i)) <v_i, x - a> v_i

so that the deviation along each of the first r directions becomes the geometric mean of
s_r and its former value. The other directions do not change. This is half of the way to
whitening. Tramer and Boneh's (2021) normalisation by the data's mean and variance is a
part of whitening as well; it reads the private data and costs privacy. This map reads
public records and no label.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from dpfedbench.config.part import Part, setting
from dpfedbench.config.rules import Rule
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch

if TYPE_CHECKING:
    from dpfedbench.run import Run

_TOGETHER = 16
"""Number of images whose maps are computed at once.

The intermediate values of more images do not stay in the processor's cache. Fewer
images are padded to this number: a matrix library uses different loops for one row than
for sixteen, with different last bits.
"""


class Features(Part):
    """Base of the feature maps.

    The features of an image do not depend on other images or on their number.
    """

    package: ClassVar[str] = "dpfedbench.models.features"
    version: ClassVar[str] = "1"
    """Version of the map.

    Raise it when features change: stored features are then recomputed.
    """

    unit_length: bool = setting(
        True,
        doc=(
            "whether each image's features are scaled to length 1 at the end; this"
            " reads that image alone"
        ),
    )

    evened: int = setting(
        0,
        ge=0,
        le=10_000,
        doc=(
            "r: leading directions of the public validation records' features that are"
            " evened out; their mean is subtracted, too. 0: public records are not read"
        ),
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda features, run: features.evened and not run.validation.public,
            "model.features.evened is {part.evened}, but validation.public is"
            " false, and the directions must come from public records: set"
            " evened to 0",
        ),
        Rule(
            lambda features, run: (
                features.evened and features.evened >= run.validation.tasks
            ),
            "model.features.evened is {part.evened}, but {run.validation.tasks}"
            " public records (validation.tasks) have fewer directions: lower it",
        ),
    )

    def notices(self, run: Run) -> tuple[str, ...]:
        if not self.evened:
            return ()
        return (
            f"features are evened by {run.validation.tasks} public records of the test"
            " part, without labels",
        )

    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the shape (height, width, channels) of an image's features.

        Args:
            image_shape: (height, width, channels) of the image.
        """
        raise NotImplementedError

    def extract(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of images, both float32 [n, channels, height, width].

        Pixels are in [0, 1].
        """
        raise NotImplementedError

    def __call__(
        self, images: np.ndarray, public: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the features of images, evened and scaled as configured.

        Args:
            images: uint8 [n, height, width, channels].
            public: public images uint8 [m, height, width, channels] that determine the
                evened directions.

        Returns:
            Features, float32 [n, height, width, channels].

        Raises:
            BenchError: the public features have fewer directions than are to be evened.
        """
        out = self._plain(images)
        if self.evened:
            assert public is not None
            flat = out.reshape(len(out), -1)
            _even(flat, _directions(self, public.shape, np.asarray(public).tobytes()))
            if self.unit_length:
                flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
        return out

    def _plain(self, images: np.ndarray) -> np.ndarray:
        """Return the features of images before directions are evened."""
        out = np.empty((len(images), *self.shape(images.shape[1:])), np.float32)
        for start in range(0, len(images), _TOGETHER):
            pixels = _filled(
                np.asarray(images[start : start + _TOGETHER]).astype(np.float32) / 255
            )
            maps = self.extract(torch.from_numpy(pixels).movedim(-1, 1))
            if self.unit_length:
                maps = maps / torch.linalg.vector_norm(
                    maps, dim=(1, 2, 3), keepdim=True
                ).clamp(min=1e-12)
            out[start : start + _TOGETHER] = maps.movedim(1, -1).numpy()[
                : len(out) - start
            ]
        return out


class _Directions(NamedTuple):
    """Directions to even out, from public features.

    `mean` is float32 [d], `directions` float32 [r, d]. `taken` float32 [r] is the share
    that is subtracted along each direction.
    """

    mean: np.ndarray
    directions: np.ndarray
    taken: np.ndarray


@functools.lru_cache(maxsize=2)  # every client needs them
def _directions(
    features: Features, shape: tuple[int, ...], public: bytes
) -> _Directions:
    """Return the leading directions of public images.

    Args:
        features: the map.
        shape: [m, height, width, channels] of the images.
        public: the images' uint8 values as bytes.
    """
    rows = features._plain(np.frombuffer(public, np.uint8).reshape(shape))
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    mean = flat.mean(axis=0)
    # The eigenvectors of the smaller Gram matrix give the directions.
    centred = flat - mean
    sizes, vectors = np.linalg.eigh(centred @ centred.T)
    sizes = np.sqrt(np.maximum(sizes[::-1], 0.0))
    vectors = vectors[:, ::-1]
    count = features.evened
    if count > min(len(sizes), centred.shape[1]) or sizes[count - 1] <= 1e-6 * sizes[0]:
        raise BenchError(
            f"model.features.evened is {count}, but the public records' features have"
            " fewer directions: lower it"
        )
    directions = (vectors[:, :count] / sizes[:count]).T @ centred
    taken = 1 - np.sqrt(sizes[count - 1] / sizes[:count])
    return _Directions(
        *(array.astype(np.float32) for array in (mean, directions, taken))
    )


def _even(rows: np.ndarray, by: _Directions) -> None:
    """Even out rows float32 [n, d] in place, a few at a time to save memory."""
    for start in range(0, len(rows), _TOGETHER):
        piece = _filled(rows[start : start + _TOGETHER]) - by.mean
        piece -= ((piece @ by.directions.T) * by.taken) @ by.directions
        rows[start : start + _TOGETHER] = piece[: len(rows) - start]


def _filled(rows: np.ndarray) -> np.ndarray:
    """Pad rows with zeros to `_TOGETHER` rows."""
    fill = np.zeros((_TOGETHER - len(rows), *rows.shape[1:]), rows.dtype)
    return np.concatenate([rows, fill]) if len(fill) else rows
