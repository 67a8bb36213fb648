"""Augmentation of images: random crop, horizontal flip, cutout.

Each image is changed independently, with random numbers of its own.
"""

from __future__ import annotations

from dpfedbench.config.part import Section, setting
from dpfedbench.lazy import np


class Augmentation(Section):
    """Random changes of each image of a batch before its gradient is computed. Test
    images are not changed.
    """

    crop: int = setting(
        0,
        ge=0,
        le=1000,
        doc=(
            "width of the border of zeros around an image, from which a window of the"
            " image's size is cut at random; 0: no crop"
        ),
        paper="4 (DARTS)",
    )
    flip: bool = setting(
        False, doc="whether half of the images are mirrored", paper="true (DARTS)"
    )
    cutout: int = setting(
        0,
        ge=0,
        le=1000,
        doc=(
            "side of the square around a random pixel that is blanked, in pixels; 0:"
            " none"
        ),
        paper="16",
    )
    cutout_value: float = setting(
        0.0, ge=0, le=1, doc="value of the blanked pixels, from 0 (black) to 1 (white)"
    )

    def apply(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return changed copies of images.

        Args:
            images: uint8 or float in [0, 1], [n, H, W, C].
            rng: draws windows, mirrorings and squares.
        """
        if not (self.crop or self.flip or self.cutout):
            return images
        changed = self._cropped(images, rng) if self.crop else images.copy()
        if self.flip:
            mirrored = rng.random(len(images)) < 0.5
            changed[mirrored] = changed[mirrored][:, :, ::-1]
        if self.cutout:
            changed[self._squares(images.shape, rng)] = (
                round(255 * self.cutout_value)
                if images.dtype == np.uint8
                else self.cutout_value
            )
        return changed

    def _cropped(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        count, height, width, _ = images.shape
        edge = (self.crop, self.crop)
        padded = np.pad(images, ((0, 0), edge, edge, (0, 0)))
        tops, lefts = rng.integers(0, 2 * self.crop + 1, (2, count))
        rows = tops[:, None] + np.arange(height)
        columns = lefts[:, None] + np.arange(width)
        image_numbers = np.arange(count)[:, None, None]
        return padded[image_numbers, rows[:, :, None], columns[:, None, :]]

    def _squares(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Return the blanked pixels, bool [n, H, W].

        A square may reach over the border.
        """
        count, height, width, _ = shape
        half = self.cutout // 2
        middle_rows = rng.integers(0, height, count)[:, None]
        middle_columns = rng.integers(0, width, count)[:, None]
        rows = np.arange(height) - middle_rows
        columns = np.arange(width) - middle_columns
        in_rows = (rows >= -half) & (rows < self.cutout - half)
        in_columns = (columns >= -half) & (columns < self.cutout - half)
        return in_rows[:, :, None] & in_columns[:, None, :]
