"""Drawings of one character, 28×28, as if many people had written it.

A letter of a DejaVu face is thinned to its skeleton, the line that a pen would follow.
Each drawing takes one face's skeleton, bends it with its own affine map and smooth
elastic field, and traces it with a pen of its own width.
"""

import numpy as np

from dpsum.randomness import stream
from drawnsets.skeletons import distance_fields
from drawnsets.tracing import SIZE, WIDE, Bends, trace

DRAWINGS = 20
"""Number of drawings of a character."""
SEED = 20150
"""Seed of the drawings. It is part of the data set, independent of any run's seed."""

_ROOM = 26  # the largest extent of a drawing's ink, in pixels

# How drawings differ. The values are chosen so that ink, pixel distances and few-shot
# accuracy come near Omniglot's.
_ROTATION = 0.1  # standard deviation, in radians
_SHEAR = 0.1  # share
_LOG_SCALE, _LOG_ASPECT = 0.10, 0.08  # natural logarithms
_ELASTIC = 0.7  # pixels at each of 5×5 knots
_SHIFT = 1.2  # pixels
_PEN = (0.62, 0.86)  # half widths, pixels


def draw_letter(letter: str) -> np.ndarray:
    """Draw all drawings of one letter.

    Returns:
        uint8 [20, 28, 28], strokes bright (255) on dark (0). Every stroke lies
        completely within the image.
    """
    fields = distance_fields(letter)
    rng = stream(SEED, "glyphs", ord(letter))
    # Each face is used once before a face is used again.
    faces = np.concatenate(
        [rng.permutation(len(fields)) for _ in range(-(-DRAWINGS // len(fields)))]
    )[:DRAWINGS]
    bends = Bends.drawn(
        rng, DRAWINGS, (_ROTATION, _SHEAR, _LOG_SCALE, _LOG_ASPECT), _ELASTIC
    )
    shift = rng.standard_normal((DRAWINGS, 2)) * _SHIFT
    pen = rng.uniform(*_PEN, DRAWINGS)
    ink = np.empty((DRAWINGS, WIDE, WIDE))
    todo = np.arange(DRAWINGS)
    while len(todo):
        ink[todo] = trace(fields, faces[todo], bends.select(todo), pen[todo])
        first, extent = _extent(ink)
        largest = extent.max(axis=1)
        todo = np.flatnonzero(largest > _ROOM)
        bends.scale[todo] *= 0.98 * _ROOM / largest[todo]
    # Centre, shift at random, and keep the ink one pixel away from the edge.
    start = np.rint(first + (extent - SIZE) / 2 - shift).astype(int)
    start = np.clip(start, first + extent + 1 - SIZE, first - 1)
    padded = np.pad(ink, ((0, 0), (SIZE, SIZE), (SIZE, SIZE)))
    drawings = [
        picture[row + SIZE : row + 2 * SIZE, column + SIZE : column + 2 * SIZE]
        for picture, (row, column) in zip(padded, start, strict=True)
    ]
    return np.rint(np.stack(drawings) * 255).astype(np.uint8)


def _extent(ink: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row and column with ink, and the extent of the ink.

    Both are int [n, 2]; the extent is in rows and columns.
    """
    first = []
    extent = []
    for axis in (2, 1):
        any_ink = np.any(np.asarray(ink > 0.02), axis=axis)
        begin = any_ink.argmax(axis=1)
        first.append(begin)
        extent.append(any_ink.shape[1] - any_ink[:, ::-1].argmax(axis=1) - begin)
    return np.stack(first, axis=1), np.stack(extent, axis=1)
