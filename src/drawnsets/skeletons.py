"""Skeletons of characters: the lines that a pen would follow."""

from functools import cache

import numpy as np
from scipy import ndimage

from drawnsets.fonts import BOLD_FACES, CANVAS, LIGHT_FACES, codes, render

_FEWEST_FACES = 4
"""Least number of light faces of a letter.

Letters with fewer light faces use bold ones as well, whose skeletons are a little
rougher.
"""


def distance_fields(letter: str) -> np.ndarray:
    """Return the distance of each source pixel to the letter's skeleton, in each face.

    The result is float64 [faces, 56, 56].
    """
    faces = [face for face in LIGHT_FACES if ord(letter) in codes(face)]
    if len(faces) < _FEWEST_FACES:
        faces += [face for face in BOLD_FACES if ord(letter) in codes(face)][
            : _FEWEST_FACES - len(faces)
        ]
    skeletons = thin(np.stack([render(letter, face) for face in faces]))
    fields = [ndimage.distance_transform_edt(skeleton == 0) for skeleton in skeletons]
    return np.stack(fields)


def thin(shapes: np.ndarray) -> np.ndarray:
    """Thin shapes to lines one pixel wide, which stay connected.

    Guo and Hall 1989, "Parallel thinning with two-subiteration algorithms", by table:
    the eight neighbours of a pixel form an 8-bit number.

    Args:
        shapes: uint8 0 or 1, [n, size, size].
    """
    thinned = shapes.copy()
    active = np.arange(len(shapes))
    while len(active):
        current = thinned[active]
        changed = np.zeros(len(active), dtype=bool)
        for table in _thinning_tables():
            padded = np.pad(current, ((0, 0), (1, 1), (1, 1)))
            code = np.zeros_like(current)
            for bit, (row, column) in enumerate(_NEIGHBOURS):
                code |= padded[
                    :, row : row + CANVAS, column : column + CANVAS
                ] << np.uint8(bit)
            removed = table[code] & current
            changed |= removed.any(axis=(1, 2))
            current = current ^ removed
        thinned[active] = current
        active = active[changed]
    return thinned


# Clockwise from north: Guo and Hall's p2 ... p9, in a frame padded by one.
_NEIGHBOURS = ((0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0), (0, 0))


@cache
def _thinning_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return one table, uint8 [256], for each of the two sub-iterations.

    An entry states whether a pixel with these neighbours is removed.
    """
    tables = np.zeros((2, 256), dtype=np.uint8)
    for code in range(256):
        p2, p3, p4, p5, p6, p7, p8, p9 = (bool(code >> bit & 1) for bit in range(8))
        pieces = sum(
            (
                not p2 and (p3 or p4),
                not p4 and (p5 or p6),
                not p6 and (p7 or p8),
                not p8 and (p9 or p2),
            )
        )
        odd_pairs = sum((p9 or p2, p3 or p4, p5 or p6, p7 or p8))
        even_pairs = sum((p2 or p3, p4 or p5, p6 or p7, p8 or p9))
        if pieces == 1 and 2 <= min(odd_pairs, even_pairs) <= 3:
            tables[0, code] = not ((p2 or p3 or not p5) and p4)
            tables[1, code] = not ((p6 or p7 or not p9) and p8)
    return tables[0], tables[1]
