"""Augmentation of images: values by hand, and shares of random draws."""

from types import SimpleNamespace

import numpy as np

from dpfedbench.parts.augmentation import Augmentation


def fixed_draws(*integers, uniform=()):
    """Return a stand-in for a random generator with fixed draws."""
    integer_draws = iter(integers)
    return SimpleNamespace(
        integers=lambda low, high, size: np.reshape(next(integer_draws), size),
        random=lambda count: np.array(uniform),
    )


IMAGES = np.arange(1, 19, dtype=np.uint8).reshape(2, 3, 3, 1)


def test_crop_is_a_window_of_the_image_with_a_border_of_zeros():
    """Windows one row up and one column left, and one row down and one column right."""
    draws = fixed_draws([[0, 2], [0, 2]])
    first, second = Augmentation(crop=1).apply(IMAGES, draws)[..., 0].tolist()
    assert first == [[0, 0, 0], [0, 1, 2], [0, 4, 5]]
    assert second == [[14, 15, 0], [17, 18, 0], [0, 0, 0]]


def test_flip_mirrors_half_of_the_images_left_to_right():
    draws = fixed_draws(uniform=[0.7, 0.2])
    first, second = Augmentation(flip=True).apply(IMAGES, draws)
    assert (first == IMAGES[0]).all()
    assert second[..., 0].tolist() == [[12, 11, 10], [15, 14, 13], [18, 17, 16]]


def test_cutout_blanks_a_square_that_may_reach_over_the_border():
    """A square of side 2 goes from y - 1 to y + 1 without its end, as in DARTS."""
    cutout = Augmentation(cutout=2, cutout_value=0.5)
    draws = fixed_draws([1, 0], [1, 2])
    first, second = cutout.apply(IMAGES, draws)[..., 0].tolist()
    assert first == [[128, 128, 3], [128, 128, 6], [7, 8, 9]]
    assert second == [[10, 128, 128], [13, 14, 15], [16, 17, 18]]
    floats = (IMAGES / 255).astype(np.float32)
    blanked = cutout.apply(floats, fixed_draws([1, 0], [1, 2]))
    assert blanked[0, 0, 0, 0] == 0.5
    assert blanked[0, 2, 0, 0] == floats[0, 2, 0, 0]


def test_augmentation_draws_have_their_shares():
    """Each share is within 4.5 deviations: false alarm for one seed in 10,000."""
    images = np.zeros((10_000, 4, 4, 1), np.uint8)
    images[:, 1, 1] = 200
    rng = np.random.default_rng(1)
    flipped = Augmentation(flip=True).apply(images, rng)
    assert abs((flipped[:, 1, 2, 0] == 200).mean() - 0.5) < 4.5 * 0.005
    cropped = Augmentation(crop=1).apply(images, rng)
    shares = (cropped[:, :3, :3, 0] == 200).mean(axis=0)
    assert np.abs(shares - 1 / 9).max() < 4.5 * 0.00315
    blanked = Augmentation(cutout=1).apply(images, rng)
    assert abs((blanked[:, 1, 1, 0] == 0).mean() - 1 / 16) < 4.5 * 0.00243
