"""Scattering against direct convolutions, written down anew; random features against
their kernel.
"""

import math

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.models.features.random import RandomFeatures
from dpfedbench.models.features.scattering import Scattering

PLAIN = Scattering(groups=None, unit_length=False)


def wave(size, scale, angle, angles):
    """A Morlet wavelet on a torus of size x size pixels, from its formula, pixel by
    pixel and period by period.
    """
    deviation, frequency, slant = 0.8 * 2**scale, 3 * math.pi / 4 / 2**scale, 4 / angles
    direction = np.array([math.cos(angle), math.sin(angle)])
    across = np.array([-math.sin(angle), math.cos(angle)])
    envelope, carrier = np.zeros((size, size)), np.zeros((size, size), complex)
    for i in range(size):
        for j in range(size):
            for row in range(-2, 3):
                for column in range(-2, 3):
                    place = np.array([i + row * size, j + column * size])
                    square = (place @ direction) ** 2 + (slant * (place @ across)) ** 2
                    weight = (
                        math.exp(-square / (2 * deviation**2))
                        * slant
                        / (2 * math.pi * deviation**2)
                    )
                    envelope[i, j] += weight
                    carrier[i, j] += weight * np.exp(
                        1j * frequency * (place @ direction)
                    )
    return carrier - carrier.sum() / envelope.sum() * envelope


def around(image, kernel):
    """The convolution on a torus, as its sum."""
    return sum(
        kernel[i, j] * np.roll(image, (i, j), (0, 1))
        for i in range(kernel.shape[0])
        for j in range(kernel.shape[1])
    )


def test_scattering_is_direct_convolution():
    rng, angles = np.random.default_rng(0), 4
    image = rng.integers(0, 256, (8, 8), dtype=np.uint8)
    # Reflected by four pixels at each edge, without the edge itself.
    places = [abs(i) if i < 8 else 14 - i for i in range(-4, 12)]
    x = image[np.ix_(places, places)] / 255
    size = len(x)
    apart = [min(i, size - i) for i in range(size)]
    blur = np.array(
        [
            [
                math.exp(-(a * a + b * b) / (2 * 1.6**2)) / (2 * math.pi * 1.6**2)
                for b in apart
            ]
            for a in apart
        ]
    )
    waves = {
        (j, k): wave(size, j, k * math.pi / angles, angles)
        for j in range(2)
        for k in range(angles)
    }
    first = {key: abs(around(x, psi)) for key, psi in waves.items()}
    maps = [x, *(first[0, k] for k in range(angles))]
    maps += [
        abs(around(first[0, k], waves[1, m]))
        for k in range(angles)
        for m in range(angles)
    ]
    maps += [first[1, k] for k in range(angles)]
    expected = np.stack([around(one, blur)[4:12:4, 4:12:4] for one in maps], axis=-1)
    found = Scattering(angles=angles, groups=None, unit_length=False)(
        image[None, :, :, None]
    )
    assert found.shape == (1, 2, 2, 25) and found.dtype == np.float32
    # In single precision; the blur's second periods, which are left out here, are below
    # exp(-10).
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=2e-6)


def test_an_image_of_one_grey_has_nothing_of_any_wavelet():
    found = PLAIN(np.full((1, 28, 28, 1), 128, np.uint8))
    assert found.shape == (1, 7, 7, 81)
    np.testing.assert_allclose(found[..., 0], 128 / 255, rtol=1e-5)
    assert abs(found[..., 1:]).max() < 1e-6


def test_channels_are_normalised_in_groups_and_each_image_has_length_one():
    images = np.random.default_rng(1).integers(0, 256, (3, 12, 12, 2), dtype=np.uint8)
    plain, found = PLAIN(images), Scattering()(images)
    assert plain.shape == (3, 3, 3, 162)
    for image, normalised in zip(plain.astype(np.float64), found, strict=True):
        groups = image.reshape(9, 27, 6)
        groups = (groups - groups.mean(axis=(0, 2), keepdims=True)) / np.sqrt(
            groups.var(axis=(0, 2), keepdims=True) + 1e-5
        )
        expected = groups.reshape(3, 3, 162)
        np.testing.assert_allclose(
            normalised, expected / np.linalg.norm(expected), atol=2e-5
        )


@pytest.mark.parametrize("features", [Scattering(), RandomFeatures(count=50)])
def test_an_image_depends_on_no_other(features):
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (70, 12, 12, 1), dtype=np.uint8)
    others = images.copy()
    others[1:] = rng.integers(0, 256, (69, 12, 12, 1), dtype=np.uint8)
    np.testing.assert_allclose(features(images)[0], features(others)[0], atol=1e-6)
    np.testing.assert_allclose(features(images)[0], features(images[:1])[0], atol=1e-6)


def test_products_of_random_features_are_those_of_a_gaussian_kernel():
    images = np.random.default_rng(3).integers(0, 256, (2, 6, 6, 1), dtype=np.uint8)
    found = RandomFeatures(count=200_000, width=3.0, unit_length=False)(images).reshape(
        2, -1
    )
    distance = np.linalg.norm((images[0] / 255.0 - images[1] / 255.0).ravel())
    # A product's deviation is at most 1 / sqrt(count) = 0.0022: five of them are
    # exceeded with a chance below 1e-6.
    assert abs(found[0] @ found[1] - math.exp(-(distance**2) / (2 * 3.0**2))) < 0.012
    assert abs(found[0] @ found[0] - 1) < 0.012


def test_features_that_do_not_fit_images_are_refused():
    with pytest.raises(
        BenchError,
        match=(
            r"^model\.features\.scales is 2, but images of 7 x 28 pixels have a side"
            r" below 8"
        ),
    ):
        PLAIN.shape((7, 28, 1))
    with pytest.raises(
        BenchError,
        match=r"^model\.features\.groups is 10, which does not divide the 81 channels",
    ):
        Scattering(groups=10).shape((28, 28, 1))


def test_directions_of_public_images_are_evened_by_the_formula():
    """Beside a singular value decomposition of the rows; a map of the image alone,
    given the public ones.
    """
    rng = np.random.default_rng(2)
    public, images = (
        rng.integers(0, 256, (n, 12, 12, 1), dtype=np.uint8) for n in (20, 7)
    )
    plain, evened = (
        Scattering(angles=4, groups=5),
        Scattering(angles=4, groups=5, evened=6),
    )
    rows, own = (
        plain(some).reshape(len(some), -1).astype(np.float64)
        for some in (public, images)
    )
    mean = rows.mean(axis=0)
    _, sizes, directions = np.linalg.svd(rows - mean, full_matrices=False)
    expected = own - mean
    for i in range(6):
        weight = 1 - math.sqrt(sizes[5] / sizes[i])
        expected = (
            expected - weight * ((own - mean) @ directions[i])[:, None] * directions[i]
        )
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = evened(images, public).reshape(7, -1)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_allclose(
        evened(images[3:4], public).reshape(-1), found[3], atol=1e-6
    )
    # Of the public rows themselves the directions then have the roots of what they had,
    # up to one factor.
    raw = Scattering(angles=4, groups=5, evened=6, unit_length=False)
    base = (
        Scattering(angles=4, groups=5, unit_length=False)(public)
        .reshape(20, -1)
        .astype(np.float64)
    )
    _, before, axes = np.linalg.svd(base - base.mean(axis=0), full_matrices=False)
    after = np.linalg.norm(raw(public, public).reshape(20, -1) @ axes.T, axis=0)
    np.testing.assert_allclose(after[:6], np.sqrt(before[5] * before[:6]), rtol=1e-3)
    np.testing.assert_allclose(after[6:19], before[6:19], rtol=1e-3)


def test_more_directions_than_public_images_have_are_refused():
    images = np.random.default_rng(3).integers(0, 256, (8, 12, 12, 1), dtype=np.uint8)
    with pytest.raises(
        BenchError,
        match=(
            r"^model\.features\.evened is 8, but the public records' features have"
            r" fewer"
        ),
    ):
        Scattering(angles=4, groups=5, evened=8)(images, images)
