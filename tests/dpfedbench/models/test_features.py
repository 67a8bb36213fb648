"""Scattering against direct convolutions, random features against their kernel."""

import math

import numpy as np
import pytest

from dpfedbench.models.features.random import RandomFeatures
from dpfedbench.models.features.scattering import Scattering

PLAIN = Scattering(angles=8, groups=None, unit_length=False)


def random_images(seed, count, *shape):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8)


def morlet(size, scale, angle, angles):
    """Return a Morlet wavelet on a torus of size x size pixels, period by period."""
    deviation = 0.8 * 2**scale
    slant = 4 / angles
    positions = np.arange(-2 * size, 3 * size)
    rows, columns = np.meshgrid(positions, positions, indexing="ij")
    along = rows * math.cos(angle) + columns * math.sin(angle)
    across = columns * math.cos(angle) - rows * math.sin(angle)
    squares = along**2 + (slant * across) ** 2
    weights = slant * np.exp(-squares / (2 * deviation**2))
    weights /= 2 * math.pi * deviation**2
    waves = weights * np.exp(1j * 3 * math.pi / 4 / 2**scale * along)
    envelope, carrier = (
        values.reshape(5, size, 5, size).sum((0, 2)) for values in (weights, waves)
    )
    return carrier - carrier.sum() / envelope.sum() * envelope


def convolve(image, kernel):
    """Return the convolution on a torus."""
    return sum(
        kernel[i, j] * np.roll(image, (i, j), (0, 1))
        for i, j in np.ndindex(*kernel.shape)
    )


def test_scattering_is_direct_convolution():
    """Each edge reflects four pixels, without itself. In single precision; periods of
    the blur below exp(-10) are left out.
    """
    image = random_images(0, 1, 8, 8)[0]
    indices = [abs(i) if i < 8 else 14 - i for i in range(-4, 12)]
    x = image[np.ix_(indices, indices)] / 255
    distances = np.minimum(np.arange(16), 16 - np.arange(16))
    squares = distances[:, None] ** 2 + distances**2
    blur = np.exp(-squares / (2 * 1.6**2)) / (2 * math.pi * 1.6**2)
    fine, coarse = (
        [morlet(16, scale, k * math.pi / 8, 8) for k in range(8)] for scale in (0, 1)
    )
    first = [abs(convolve(x, wavelet)) for wavelet in fine + coarse]
    second = [abs(convolve(maps, wavelet)) for maps in first[:8] for wavelet in coarse]
    maps = [x, *first[:8], *second, *first[8:]]
    expected = [convolve(values, blur)[4:12:4, 4:12:4] for values in maps]
    features = PLAIN(image[None, :, :, None])
    assert features.shape == (1, 2, 2, 81)
    assert features.dtype == np.float32
    np.testing.assert_allclose(
        features[0], np.stack(expected, axis=-1), rtol=1e-4, atol=2e-6
    )


def test_scattering_normalises_groups_of_channels_and_the_length_of_an_image():
    images = random_images(1, 3, 12, 12, 2)
    plain = PLAIN(images)
    assert plain.shape == (3, 3, 3, 162)
    for image, normalised in zip(plain, Scattering()(images), strict=True):
        groups = image.astype(np.float64).reshape(9, 27, 6)
        centred = groups - groups.mean(axis=(0, 2), keepdims=True)
        variance = groups.var(axis=(0, 2), keepdims=True)
        expected = (centred / np.sqrt(variance + 1e-5)).reshape(3, 3, 162)
        expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(normalised, expected, atol=2e-5)


@pytest.mark.parametrize("features", [Scattering(), RandomFeatures(count=50)])
def test_features_of_an_image_do_not_depend_on_other_images(features):
    images = random_images(2, 70, 12, 12, 1)
    first = features(images)[0]
    np.testing.assert_allclose(first, features(images[:1])[0], atol=1e-6)
    images[1:] = random_images(3, 69, 12, 12, 1)
    np.testing.assert_allclose(first, features(images)[0], atol=1e-6)


def test_random_features_have_the_products_of_a_gaussian_kernel():
    """A product's deviation is at most 0.0022; five have probability below 1e-6."""
    images = random_images(3, 2, 6, 6, 1)
    features = RandomFeatures(count=200_000, width=3.0, unit_length=False)
    first, second = features(images).reshape(2, -1)
    distance = np.linalg.norm((images[0] / 255.0 - images[1] / 255.0).ravel())
    kernel = math.exp(-(distance**2) / (2 * 3.0**2))
    assert abs(first @ second - kernel) < 0.012
    assert abs(first @ first - 1) < 0.012


def test_evened_features_follow_the_formula():
    """Reference: a singular value decomposition of the public rows."""
    public = random_images(2, 20, 12, 12, 1)
    images = random_images(4, 7, 12, 12, 1)
    plain = Scattering(angles=4, groups=5)
    evened = Scattering(angles=4, groups=5, evened=6)
    rows = plain(public).reshape(20, -1).astype(np.float64)
    mean = rows.mean(axis=0)
    _, sizes, directions = np.linalg.svd(rows - mean, full_matrices=False)
    centred = plain(images).reshape(7, -1).astype(np.float64) - mean
    weights = 1 - np.sqrt(sizes[5] / sizes[:6])
    expected = centred - (centred @ directions[:6].T * weights) @ directions[:6]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    features = evened(images, public).reshape(7, -1)
    np.testing.assert_allclose(features, expected, atol=2e-5)
    alone = evened(images[3:4], public).reshape(-1)
    np.testing.assert_allclose(alone, features[3], atol=1e-6)
