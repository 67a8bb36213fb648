"""Records of one digit, 28×28.

A record takes the shape of its digit in one of twelve DejaVu faces, bends it with its
own affine map and smooth elastic field, makes it bolder or lighter, and blurs it. A
straight gap cuts it, a stray stroke may cross it, and each record has its own
brightness and noise.
"""

from functools import cache

import numpy as np
from scipy import ndimage

from dpsum.randomness import stream
from drawnsets.fonts import BOLD_FACES, LIGHT_FACES, render
from drawnsets.tracing import SIZE, Bends, trace

SPLITS = ("train", "test")
SEED = 20240
"""Seed of the drawings. It is part of the data set, independent of any run's seed."""

_FACES = LIGHT_FACES + BOLD_FACES
_BLOCK = 250  # records per random stream; part of the data set's definition

# How records differ. The values are chosen so that the CNN of Adap DP-FL, trained on
# all records without privacy, comes near its accuracy on MNIST: 98.4 % after six epochs
# of Adam (rate 0.001, batches of 128).
_ROTATION, _SHEAR = 0.15, 0.15  # standard deviations: radians, share,
_LOG_SCALE, _LOG_ASPECT = 0.1, 0.1  # natural logarithms
_ELASTIC = 0.8  # pixels at each knot,
_SHIFT = 1.0  # pixels
_BOLDER = (-0.5, 0.5)  # pixels on each side of a stroke
_BRIGHTNESS = (0.5, 1.0)
_NOISE = (0.0, 0.06)  # standard deviation
# Pixels of two straight strokes of each record: one is cut out of it, one drawn over it.
_LENGTH, _HALF_WIDTH = (2.0, 11.0), (0.4, 1.0)


def draw_digit(digit: int, split: str, count: int) -> np.ndarray:
    """Draw the first records of one digit. They do not depend on `count`.

    Args:
        digit: 0 to 9.
        split: "train" or "test".
        count: number of records.

    Returns:
        uint8 [count, 28, 28], bright on dark.
    """
    blocks = [
        _draw(
            stream(SEED, "digits", SPLITS.index(split), digit, block),
            _fields(str(digit)),
        )
        for block in range(-(-count // _BLOCK))
    ]
    return np.concatenate(blocks)[:count]


def _draw(rng: np.random.Generator, fields: np.ndarray) -> np.ndarray:
    """Draw one block of records of a digit.

    Args:
        rng: the block's random stream.
        fields: distance fields of the digit's faces (`_fields`).
    """
    bends = Bends.drawn(
        rng, _BLOCK, (_ROTATION, _SHEAR, _LOG_SCALE, _LOG_ASPECT), _ELASTIC
    )
    faces = rng.integers(len(fields), size=_BLOCK)
    bolder = rng.uniform(*_BOLDER, _BLOCK)
    shift = rng.standard_normal((2, _BLOCK)) * _SHIFT
    ink = trace(fields, faces, bends, bolder, shift.T)
    ink *= 1 - _strokes(rng)  # a gap
    np.maximum(ink, _strokes(rng), out=ink)
    ink += rng.uniform(0, 1, (_BLOCK, 1, 1)) * (
        ndimage.gaussian_filter(ink, (0, 1, 1)) - ink
    )
    ink *= rng.uniform(*_BRIGHTNESS, (_BLOCK, 1, 1))
    ink += rng.uniform(*_NOISE, (_BLOCK, 1, 1)) * rng.standard_normal(ink.shape)
    return np.rint(np.clip(ink, 0, 1) * 255).astype(np.uint8)


def _strokes(rng: np.random.Generator) -> np.ndarray:
    """Draw a straight stroke at a random place in every picture of a block.

    Returns:
        Ink in [0, 1], [block, 28, 28].
    """
    row, column = rng.uniform(0, SIZE - 1, (2, _BLOCK, 1, 1))
    angle = rng.uniform(0, np.pi, (_BLOCK, 1, 1))
    half_length = rng.uniform(*_LENGTH, (_BLOCK, 1, 1)) / 2
    half_width = rng.uniform(*_HALF_WIDTH, (_BLOCK, 1, 1))
    pixels = np.arange(SIZE)
    rows = pixels[:, None] - row
    columns = pixels - column
    along = np.cos(angle) * rows + np.sin(angle) * columns
    across = np.cos(angle) * columns - np.sin(angle) * rows
    distance = np.hypot(across, np.maximum(abs(along) - half_length, 0))
    return np.clip(half_width + 0.5 - distance, 0, 1)


@cache
def _fields(character: str) -> np.ndarray:
    """Return the signed distance of each source pixel from the character, in each face.

    Distances are negative inside the character: [faces, 56, 56].
    """
    shapes = [render(character, face) for face in _FACES]
    outside = [ndimage.distance_transform_edt(shape == 0) for shape in shapes]
    inside = [ndimage.distance_transform_edt(shape) for shape in shapes]
    # The outline runs midway between the pixels on its two sides.
    signed = np.stack(outside) - np.stack(inside)
    return signed - np.sign(signed) / 2
