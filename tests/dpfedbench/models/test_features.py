"""Scattering against direct convolutions, random features against their kernel."""

import math

import numpy as np
import pytest

from dpfedbench.models.features.random import RandomFeatures
from dpfedbench.models.features.scattering import Scattering

PLAIN = Scattering(groups=None, unit_length=False)


def random_images(seed, count, *shape):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8)


def morlet(size, scale, angle, angles):
    """Return a Morlet wavelet on a torus of size x size pixels.

    The loop goes pixel by pixel and period by period.
    """
    deviation = 0.8 * 2**scale
    frequency = 3 * math.pi / 4 / 2**scale
    slant = 4 / angles
    direction = np.array([math.cos(angle), math.sin(angle)])
    across = np.array([-math.sin(angle), math.cos(angle)])
    envelope = np.zeros((size, size))
    carrier = np.zeros((size, size), complex)
    periods = [size * period for period in range(-2, 3)]
    for i, j in np.ndindex(size, size):
        for row in periods:
            for column in periods:
                point = np.array([i + row, j + column])
                square = (point @ direction) ** 2 + (slant * (point @ across)) ** 2
                weight = math.exp(-square / (2 * deviation**2))
                weight *= slant / (2 * math.pi * deviation**2)
                envelope[i, j] += weight
                phase = frequency * (point @ direction)
                carrier[i, j] += weight * np.exp(1j * phase)
    return carrier - carrier.sum() / envelope.sum() * envelope


def convolve(image, kernel):
    """Return the convolution on a torus."""
    return sum(
        kernel[i, j] * np.roll(image, (i, j), (0, 1))
        for i, j in np.ndindex(*kernel.shape)
    )


def test_scattering_is_direct_convolution():
    """Each edge reflects four pixels of the image, without the edge itself.

    In single precision. The reference leaves out further periods of the blur, which are
    below exp(-10).
    """
    angles = 8
    image = random_images(0, 1, 8, 8)[0]
    indices = [abs(i) if i < 8 else 14 - i for i in range(-4, 12)]
    x = image[np.ix_(indices, indices)] / 255
    distances = np.minimum(np.arange(16), 16 - np.arange(16))
    squares = distances[:, None] ** 2 + distances**2
    blur = np.exp(-squares / (2 * 1.6**2)) / (2 * math.pi * 1.6**2)
    wavelets = {
        (scale, k): morlet(16, scale, k * math.pi / angles, angles)
        for scale in range(2)
        for k in range(angles)
    }
    first = {key: abs(convolve(x, wavelet)) for key, wavelet in wavelets.items()}
    maps = [x, *(first[0, k] for k in range(angles))]
    maps += [
        abs(convolve(first[0, k], wavelets[1, m]))
        for k in range(angles)
        for m in range(angles)
    ]
    maps += [first[1, k] for k in range(angles)]
    expected = [convolve(values, blur)[4:12:4, 4:12:4] for values in maps]
    scattering = Scattering(angles=angles, groups=None, unit_length=False)
    features = scattering(image[None, :, :, None])
    assert features.shape == (1, 2, 2, 81)
    assert features.dtype == np.float32
    np.testing.assert_allclose(
        features[0], np.stack(expected, axis=-1), rtol=1e-4, atol=2e-6
    )


def test_scattering_normalises_groups_of_channels_and_the_length_of_an_image():
    images = random_images(1, 3, 12, 12, 2)
    plain = PLAIN(images)
    assert plain.shape == (3, 3, 3, 162)
    for image, normalised in zip(
        plain.astype(np.float64), Scattering()(images), strict=True
    ):
        groups = image.reshape(9, 27, 6)
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
    """A product's deviation is at most 1 / sqrt(count) = 0.0022. Five deviations are
    exceeded with probability below 1e-6.
    """
    images = random_images(3, 2, 6, 6, 1)
    features = RandomFeatures(count=200_000, width=3.0, unit_length=False)
    first, second = features(images).reshape(2, -1)
    distance = np.linalg.norm((images[0] / 255.0 - images[1] / 255.0).ravel())
    kernel = math.exp(-(distance**2) / (2 * 3.0**2))
    assert abs(first @ second - kernel) < 0.012
    assert abs(first @ first - 1) < 0.012


def test_evened_features_follow_the_formula():
    """Reference: a singular value decomposition of the public rows.

    Given the public images, the features of an image depend on that image alone.
    """
    public = random_images(2, 20, 12, 12, 1)
    images = random_images(4, 7, 12, 12, 1)
    plain = Scattering(angles=4, groups=5)
    evened = Scattering(angles=4, groups=5, evened=6)
    rows = plain(public).reshape(20, -1).astype(np.float64)
    mean = rows.mean(axis=0)
    _, sizes, directions = np.linalg.svd(rows - mean, full_matrices=False)
    centred = plain(images).reshape(7, -1).astype(np.float64) - mean
    expected = centred
    for i in range(6):
        weight = 1 - math.sqrt(sizes[5] / sizes[i])
        share = (centred @ directions[i])[:, None] * directions[i]
        expected = expected - weight * share
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    features = evened(images, public).reshape(7, -1)
    np.testing.assert_allclose(features, expected, atol=2e-5)
    alone = evened(images[3:4], public).reshape(-1)
    np.testing.assert_allclose(alone, features[3], atol=1e-6)
