"""Colour scenes of one letter.

Each image bends and turns the letter a little in its own way, traces it with a pen of
its own width and colour, and puts it on a textured ground of three colours. A light
falls from one side, and there is noise. Colours carry no information about the letter.

A scene is laid out in units of its side, so that scenes of two sizes differ only in
their pixels and draws.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import njit

from dpsum.randomness import stream
from drawnsets.skeletons import distance_fields

SEED = 20163
"""Seed of the scenes. It is part of the data set, independent of any run's seed."""

_BLOCK = 50  # images per random stream; part of the data set's definition
# Knots of the letter's bending, and of the ground's two random grids.
_KNOTS = 5
_COARSE = 6
_FINE = 20
# Box and middle of a letter's distance field, in its pixels.
_SOURCE_BOX = 40.0
_SOURCE_MIDDLE = 27.5
_WAVE_STEPS = 1024


# How scenes differ. Pairs are bounds of uniform draws; single numbers are standard
# deviations.
_LETTER_SIDE = (0.7, 0.85)  # the letter's longer side, in sides of the image
_ROTATION = 0.08  # radians
_SHEAR = 0.05  # share
_LOG_ASPECT = 0.05  # natural logarithm
_ELASTIC = 0.015  # displacement at each of 5x5 knots, in the letter's longer sides
_SHIFT = 0.03  # displacement of the letter's middle, in sides of the image
_PEN = (0.045, 0.065)  # half the pen's width, in the letter's longer sides
# Least distance of the letter's colour from the ground's three colours, in RGB within
# [0, 1].
_CONTRAST = 0.6
_TEXTURE = (0.0, 0.15)  # strengths of the ground's fine texture and of its waves
_LIGHT = 0.1  # strengths of the light from one side, and of the tint
_NOISE = (0.01, 0.02)  # standard deviation of a pixel's noise


def draw_scenes(letter: str, size: int, count: int) -> np.ndarray:
    """Draw the first scenes of one letter. They do not depend on `count`.

    Args:
        letter: any letter of the fonts.
        size: side of an image in pixels.
        count: number of scenes.

    Returns:
        uint8 [count, size, size, 3].
    """
    fields = distance_fields(letter)
    scenes = np.empty((count, size, size, 3), dtype=np.uint8)
    for block, start in enumerate(range(0, count, _BLOCK)):
        rng = stream(SEED, "glyph-scenes", size, ord(letter), block)
        _draw(
            fields,
            *_lay_out(rng, size, len(fields)),
            _wave(),
            scenes[start : start + _BLOCK],
        )
    return scenes


def _lay_out(rng: np.random.Generator, size: int, faces: int) -> tuple[Any, ...]:
    """Draw all random parameters of a block of scenes.

    They are in the order of `_draw`'s arguments.
    """
    n = _BLOCK
    palette = rng.uniform(0.05, 0.95, (n, 3, 3))
    coarse = rng.standard_normal((n, 2, _COARSE, _COARSE))
    fine = rng.standard_normal((n, _FINE, _FINE))
    texture = rng.uniform(*_TEXTURE, (n, 2))
    # Columns: frequency, direction, phase, bend.
    wave = rng.uniform((2, 0, 0, 0), (9, np.pi, 1, 1), (n, 4))
    face = rng.integers(faces, size=n)
    side = rng.uniform(*_LETTER_SIDE, n)
    angle, shear, log_aspect = rng.standard_normal((3, n)) * [
        [_ROTATION],
        [_SHEAR],
        [_LOG_ASPECT],
    ]
    middle = rng.standard_normal((n, 2)) * _SHIFT
    pen = rng.uniform(*_PEN, n)
    letter = np.stack(
        [side, np.cos(angle), np.sin(angle), shear, np.exp(log_aspect), *middle.T, pen],
        axis=1,
    )
    elastic = rng.standard_normal((n, 2, _KNOTS, _KNOTS)) * _ELASTIC
    # Take the first of a few colours that stands out from the ground. If none does,
    # take the one with the largest contrast.
    colours = rng.uniform(0, 1, (n, 24, 3))
    distance = np.sqrt(((colours[:, :, None] - palette[:, None]) ** 2).sum(axis=3)).min(
        axis=2
    )
    ink = colours[np.arange(n), np.minimum(distance, _CONTRAST).argmax(axis=1)]
    direction = rng.uniform(0, 2 * np.pi, n)
    strength = rng.uniform(0, _LIGHT, n)
    light = np.stack(
        [strength * np.cos(direction), strength * np.sin(direction)], axis=1
    )
    tint = 1 + rng.uniform(-0.5, 0.5, (n, 3)) * _LIGHT
    noise = rng.uniform(*_NOISE, n)[:, None, None, None] * rng.standard_normal(
        (n, size, size, 3), dtype=np.float32
    )
    return (
        face,
        letter,
        elastic,
        ink,
        palette,
        coarse,
        fine,
        texture,
        wave,
        light,
        tint,
        noise,
    )


@cache
def _wave() -> np.ndarray:
    """Return one period of a cosine between 0 and 1, as a table.

    Its values are rounded, so that they do not depend on the processor's cosine.
    """
    return np.round(
        0.5 + 0.5 * np.cos(2 * np.pi * np.arange(_WAVE_STEPS) / _WAVE_STEPS), 9
    )


# No fast arithmetic: the order of operations is part of the data set's definition.
_compiled: Any = njit(nogil=True, cache=True, error_model="numpy")


@_compiled
def _smooth(grid, row, column):
    """Return a grid's value between its knots, by smoothed linear interpolation.

    Row and column are in [0, knots - 1).
    """
    i = int(row)
    j = int(column)
    u = row - i
    v = column - j
    u = u * u * (3 - 2 * u)
    v = v * v * (3 - 2 * v)
    upper = grid[i, j] + v * (grid[i, j + 1] - grid[i, j])
    lower = grid[i + 1, j] + v * (grid[i + 1, j + 1] - grid[i + 1, j])
    return upper + u * (lower - upper)


@_compiled
def _draw(
    fields,
    face,
    letter,
    elastic,
    ink,
    palette,
    coarse,
    fine,
    texture,
    wave,
    light,
    tint,
    noise,
    table,
    out,
):
    size = out.shape[1]
    canvas = np.empty((size, size, 3))
    last = fields.shape[1] - 1.001
    for n in range(len(out)):
        rough = texture[n, 0]
        waves = texture[n, 1]
        turn = wave[n, 1]
        bend = wave[n, 3]
        step_row = wave[n, 0] * np.cos(turn)
        step_column = wave[n, 0] * np.sin(turn)
        for i in range(size):
            row = (i + 0.5) / size
            for j in range(size):
                column = (j + 0.5) / size
                patch = _smooth(
                    coarse[n, 0], row * (_COARSE - 1), column * (_COARSE - 1)
                )
                warp = _smooth(
                    coarse[n, 1], row * (_COARSE - 1), column * (_COARSE - 1)
                )
                grain = _smooth(fine[n], row * (_FINE - 1), column * (_FINE - 1))
                share = min(1.0, max(0.0, 0.5 + 0.9 * patch + rough * grain))
                phase = row * step_row + column * step_column + wave[n, 2] + bend * warp
                stripe = waves * table[int(phase * _WAVE_STEPS) % _WAVE_STEPS] + max(
                    0.0, 0.4 * warp
                )
                stripe = min(1.0, stripe)
                for c in range(3):
                    colour = palette[n, 0, c] + share * (
                        palette[n, 1, c] - palette[n, 0, c]
                    )
                    canvas[i, j, c] = colour + stripe * (palette[n, 2, c] - colour)
        side = letter[n, 0]
        cosine = letter[n, 1]
        sine = letter[n, 2]
        shear = letter[n, 3]
        aspect = letter[n, 4]
        field = fields[face[n]]
        for i in range(size):
            for j in range(size):
                # In units of the letter's longer side, from its middle. The inverse
                # deformation follows: turn, stretch, shear, bend.
                row = ((i + 0.5) / size - 0.5 - letter[n, 5]) / side
                column = ((j + 0.5) / size - 0.5 - letter[n, 6]) / side
                if abs(row) > 0.9 or abs(column) > 0.9:
                    continue
                down = (cosine * row + sine * column) / aspect
                right = (cosine * column - sine * row) * aspect
                right += shear * down
                at_row = min(_KNOTS - 1.001, max(0.0, (down + 0.5) * (_KNOTS - 1)))
                at_column = min(_KNOTS - 1.001, max(0.0, (right + 0.5) * (_KNOTS - 1)))
                down += _smooth(elastic[n, 0], at_row, at_column)
                right += _smooth(elastic[n, 1], at_row, at_column)
                down = down * _SOURCE_BOX + _SOURCE_MIDDLE
                right = right * _SOURCE_BOX + _SOURCE_MIDDLE
                y = min(last, max(0.0, down))
                x = min(last, max(0.0, right))
                a = int(y)
                b = int(x)
                u = y - a
                v = x - b
                upper = field[a, b] + v * (field[a, b + 1] - field[a, b])
                lower = field[a + 1, b] + v * (field[a + 1, b + 1] - field[a + 1, b])
                distance = upper + u * (lower - upper) + abs(down - y) + abs(right - x)
                alpha = 0.5 + (letter[n, 7] - distance / _SOURCE_BOX) * side * size
                alpha = min(1.0, max(0.0, alpha))
                for c in range(3):
                    canvas[i, j, c] += alpha * (ink[n, c] - canvas[i, j, c])
        for i in range(size):
            for j in range(size):
                gain = (
                    1
                    + light[n, 0] * (2 * i / size - 1)
                    + light[n, 1] * (2 * j / size - 1)
                )
                for c in range(3):
                    value = canvas[i, j, c] * gain * tint[n, c] + noise[n, i, j, c]
                    out[n, i, j, c] = np.uint8(255 * min(1.0, max(0.0, value)) + 0.5)
