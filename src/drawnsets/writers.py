"""Characters of several hundred writers, 28×28: digits, capital and small letters.

Each writer has a hand: a preferred face for each character, a slant, proportions, a pen
and an unevenness of its own, and its own frequency of characters. A drawing follows the
skeleton of the writer's face, as in `letters`. Some characters of different writers look
alike (0 and O, 1 and l), so that a model of one writer can know what a common model
cannot. Writers have between 20 and 400 drawings.
"""

import string
from functools import cache

import numpy as np

from dpsum.randomness import stream
from drawnsets.skeletons import distance_fields
from drawnsets.tracing import Bends, trace

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""The 62 characters, in the order of the labels (LEAF's FEMNIST has the same)."""
WRITERS = 240
"""Number of writers."""
SEED = 20181
"""Seed of the drawings. It is part of the data set, independent of any run's seed."""

_FACES = 6  # light faces of a character, which all 62 characters have
_LEAST, _MOST = 20, 400  # drawings of a writer
_LOG_MEAN, _LOG_SPREAD = 4.4, 0.6  # of the number of drawings
_DIGITS = 0.4  # share of digits among all drawings
_CONCENTRATION = 40.0  # of a writer's frequencies of characters, in Dirichlet's law
_HABIT = 0.85  # chance that a writer draws its usual form of a character

# Spread of the hands, and of the drawings of one hand: rotation in radians, shear, and
# the logarithms of scale and aspect.
_HANDS = (0.08, 0.3, 0.12, 0.15)
_DRAWINGS = (0.05, 0.06, 0.05, 0.05)
_ELASTIC = (0.3, 0.9)  # pixels, from the steadiest hand to the least steady one
_PENS = (0.5, 1.3)  # half widths, pixels
_NOISE = (0.0, 0.08)  # standard deviation
_SHIFT = 1.0  # pixels


def count_drawings() -> np.ndarray:
    """Return how many drawings of each character each writer has.

    Nothing is drawn.

    Returns:
        int64 [writers, 62].
    """
    return np.stack(
        [np.bincount(chosen, minlength=len(CHARACTERS)) for chosen in _characters()]
    )


def draw_writer(writer: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw all characters of one writer.

    Args:
        writer: 0 to `WRITERS` - 1.

    Returns:
        uint8 [drawings, 28, 28], strokes bright (255) on dark (0), and the characters'
        labels, int64 [drawings], in the order in which the writer drew them.
    """
    labels = _characters()[writer]
    count = len(labels)
    rng = stream(SEED, "writers", writer)
    usual = rng.integers(_FACES, size=len(CHARACTERS))
    hand = rng.standard_normal(4) * np.array(_HANDS)
    unsteady = rng.uniform(*_ELASTIC)
    pen = rng.uniform(*_PENS)
    noise = rng.uniform(*_NOISE)

    is_usual = rng.uniform(size=count) < _HABIT
    faces = np.where(is_usual, usual[labels], rng.integers(_FACES, size=count))
    bends = Bends.drawn(rng, count, _DRAWINGS, unsteady)
    angle, shear, log_scale, log_aspect = hand
    bends = Bends(
        bends.angle + angle,
        bends.shear + shear,
        bends.scale * np.exp(log_scale),
        bends.aspect * np.exp(log_aspect),
        bends.elastic,
    )
    pens = pen * rng.uniform(0.9, 1.1, count)
    shift = rng.standard_normal((count, 2)) * _SHIFT
    ink = trace(_fields(), labels * _FACES + faces, bends, pens, shift)
    ink += noise * rng.standard_normal(ink.shape)
    return np.rint(np.clip(ink, 0, 1) * 255).astype(np.uint8), labels


@cache
def _characters() -> list[np.ndarray]:
    """Draw the labels of each writer's drawings, int64 [drawings]."""
    rng = stream(SEED, "writers-sizes")
    sizes = np.exp(_LOG_MEAN + _LOG_SPREAD * rng.standard_normal(WRITERS))
    sizes = np.clip(np.rint(sizes), _LEAST, _MOST).astype(int)
    letters = len(CHARACTERS) - len(string.digits)
    common = np.full(len(CHARACTERS), (1 - _DIGITS) / letters)
    common[: len(string.digits)] = _DIGITS / len(string.digits)
    labels = []
    for writer, size in enumerate(sizes):
        rng = stream(SEED, "writers-characters", writer)
        frequencies = rng.dirichlet(_CONCENTRATION * common)
        labels.append(rng.choice(len(CHARACTERS), size=size, p=frequencies))
    return labels


@cache
def _fields() -> np.ndarray:
    """Return the distance fields of all characters' faces, [62 · 6, 56, 56]."""
    fields = [distance_fields(character) for character in CHARACTERS]
    return np.concatenate(fields)
