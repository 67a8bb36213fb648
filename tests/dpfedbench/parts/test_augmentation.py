"""Augmentation of images: values by hand, and random numbers of each image alone."""

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.augmentation import Augmentation


class Drawn:
    """A generator whose draws a test states."""

    def __init__(self, *integers, uniform=()):
        self._integers, self._uniform = list(integers), np.array(uniform)

    def integers(self, low, high, size):
        found = np.array(self._integers.pop(0))
        assert low == 0 and (found < high).all() and (found >= 0).all()
        return found.reshape(size)

    def random(self, count):
        assert len(self._uniform) == count
        return self._uniform


IMAGES = np.arange(1, 19, dtype=np.uint8).reshape(2, 3, 3, 1)


def test_a_crop_is_a_window_of_the_image_with_a_border_of_zeros():
    """The first window starts one row up and one column left of the image, the second
    one row down and one column right.
    """
    found = Augmentation(crop=1).apply(IMAGES, Drawn([[0, 2], [0, 2]]))
    assert found[0, :, :, 0].tolist() == [[0, 0, 0], [0, 1, 2], [0, 4, 5]]
    assert found[1, :, :, 0].tolist() == [[14, 15, 0], [17, 18, 0], [0, 0, 0]]


def test_half_of_the_images_are_mirrored_left_to_right():
    found = Augmentation(flip=True).apply(IMAGES, Drawn(uniform=[0.7, 0.2]))
    assert (found[0] == IMAGES[0]).all()
    assert found[1, :, :, 0].tolist() == [[12, 11, 10], [15, 14, 13], [18, 17, 16]]


def test_cutout_blanks_a_square_that_may_reach_over_the_border():
    """Of side 2: from one pixel before the middle to it, as DARTS' clip of y - 1 to
    y + 1.
    """
    draws = Drawn([1, 0], [1, 2])
    found = Augmentation(cutout=2, cutout_value=0.5).apply(IMAGES, draws)
    assert found[0, :, :, 0].tolist() == [[128, 128, 3], [128, 128, 6], [7, 8, 9]]
    assert found[1, :, :, 0].tolist() == [[10, 128, 128], [13, 14, 15], [16, 17, 18]]
    floats = (IMAGES / 255).astype(np.float32)
    draws = Drawn([1, 0], [1, 2])
    found = Augmentation(cutout=2, cutout_value=0.5).apply(floats, draws)
    assert found[0, 0, 0, 0] == 0.5 and found[0, 2, 0, 0] == floats[0, 2, 0, 0]


def test_without_any_the_images_themselves_are_returned():
    assert Augmentation().apply(IMAGES, np.random.default_rng(0)) is IMAGES


def test_the_given_images_stay_as_they_are():
    kept, every = IMAGES.copy(), Augmentation(crop=1, flip=True, cutout=2)
    every.apply(IMAGES, np.random.default_rng(0))
    assert (kept == IMAGES).all()


def test_shares_of_windows_mirrored_images_and_blanks():
    """10,000 images, each share within 4.5 standard deviations: one false alarm in
    10,000 tests.
    """
    images = np.zeros((10_000, 4, 4, 1), np.uint8)
    images[:, 1, 1] = 200
    rng = np.random.default_rng(1)
    flipped = Augmentation(flip=True).apply(images, rng)
    assert abs((flipped[:, 1, 2, 0] == 200).mean() - 0.5) < 4.5 * 0.005
    cropped = Augmentation(crop=1).apply(images, rng)
    for row in range(3):
        for column in range(3):
            share = (cropped[:, row, column, 0] == 200).mean()
            assert abs(share - 1 / 9) < 4.5 * 0.00315
    blanked = Augmentation(cutout=1).apply(images, rng)
    assert abs((blanked[:, 1, 1, 0] == 0).mean() - 1 / 16) < 4.5 * 0.00243


def test_records_that_are_no_images_are_refused():
    with pytest.raises(BenchError, match=r"records of shape \[5\] are no images"):
        Augmentation(flip=True).apply(np.zeros((2, 5)), np.random.default_rng(0))
