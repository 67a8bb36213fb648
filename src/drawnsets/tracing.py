"""Tracing of lines: each drawing bends its shape and follows it with a pen."""

from functools import cache
from typing import NamedTuple

import numpy as np

from drawnsets.fonts import BOX, CANVAS

SIZE = 28
"""Side of a drawing, in pixels."""
WIDE = 40
"""Side of the canvas on which a drawing is traced before it is cut to `SIZE`.

So no stroke is lost.
"""
_SCALE = BOX / 20  # pixels of a rendered shape in one pixel of a drawing
_KNOTS = 5  # rows and columns of knots that move independently
# Pictures traced at once, so that intermediate values stay in the cache. No pixel
# depends on it.
_TOGETHER = 10


class Bends(NamedTuple):
    """Deformations of n drawings.

    Attributes:
        angle: [n], radians.
        shear: [n], columns per row.
        scale: [n], 1 for a longer side of 20 pixels.
        aspect: [n], square root of height divided by width.
        elastic: [n, 2, 5, 5], displacement of rows and columns at each knot, in pixels.
    """

    angle: np.ndarray
    shear: np.ndarray
    scale: np.ndarray
    aspect: np.ndarray
    elastic: np.ndarray

    @classmethod
    def drawn(
        cls,
        rng: np.random.Generator,
        count: int,
        spreads: tuple[float, ...],
        elastic: float,
    ) -> "Bends":
        """Draw random deformations.

        Args:
            rng: random stream.
            count: number of drawings.
            spreads: standard deviations of angle, shear, and the logarithms of scale
                and aspect.
            elastic: standard deviation of the displacements, in pixels.
        """
        angle, shear, log_scale, log_aspect = (
            rng.standard_normal((4, count)) * np.array(spreads)[:, None]
        )
        knots = rng.standard_normal((count, 2, _KNOTS, _KNOTS)) * elastic
        return cls(angle, shear, np.exp(log_scale), np.exp(log_aspect), knots)

    def select(self, some: np.ndarray | slice) -> "Bends":
        """Return the deformations of a selection of the drawings."""
        return Bends(*(values[some] for values in self))


def trace(
    fields: np.ndarray,
    faces: np.ndarray,
    bends: Bends,
    pen: np.ndarray,
    shift: np.ndarray | None = None,
) -> np.ndarray:
    """Trace shapes on canvases of 40×40 pixels, or on a part of 28×28 of each canvas.

    Args:
        fields: [faces, 56, 56], distance of each source pixel from the line to be
            traced, for shapes of `render`.
        faces: int [n], index of each drawing's face.
        bends: deformations of the drawings.
        pen: [n], half widths of the pens, in pixels.
        shift: [n, 2], rows and columns of the part's middle from that of the canvas, in
            pixels; it is rounded, and the part lies on the canvas. None: no part.

    Returns:
        Ink in [0, 1], [n, 40, 40] or [n, 28, 28].
    """
    size = WIDE
    start = np.zeros((len(pen), 2), int)
    if shift is not None:
        size = SIZE
        room = WIDE - SIZE
        start = np.clip(np.rint(room / 2 + shift).astype(int), 0, room)
    pieces = [
        slice(first, first + _TOGETHER) for first in range(0, len(pen), _TOGETHER)
    ]
    return np.concatenate(
        [
            _trace(
                fields[faces[piece]],
                bends.select(piece),
                pen[piece],
                start[piece],
                size,
            )
            for piece in pieces
        ]
    )


def _trace(
    fields: np.ndarray, bends: Bends, pen: np.ndarray, start: np.ndarray, size: int
) -> np.ndarray:
    at = np.arange(size) + start.T[:, :, None]
    down, across = _knot_weights()[at]
    bend = np.einsum(
        "ndpj,nqj->ndpq", np.einsum("npi,ndij->ndpj", down, bends.elastic), across
    )
    row_offset, column_offset = at - (WIDE - 1) / 2
    rows = row_offset[:, :, None] + bend[:, 0]
    columns = column_offset[:, None, :] + bend[:, 1]
    # Map a drawing's pixel back to the skeleton: rotate, shear, scale.
    angle, shear, scale, aspect = (values[:, None, None] for values in bends[:4])
    cosine = np.cos(angle)
    sine = np.sin(angle)
    middle = (CANVAS - 1) / 2
    back_rows = (cosine * rows + sine * columns) / (scale * aspect) * _SCALE
    back_columns = (cosine * columns - sine * rows) / (
        scale / aspect
    ) * _SCALE + shear * back_rows
    distance = _interpolate(fields, back_rows + middle, back_columns + middle)
    distance *= scale / _SCALE
    return np.clip(pen[:, None, None] + 0.5 - distance, 0, 1)


def _interpolate(
    fields: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Interpolate bilinearly.

    Beyond the canvas, the distance to its edge is added.
    """
    inside_rows, inside_columns = (
        np.clip(coordinates, 0, CANVAS - 1.001) for coordinates in (rows, columns)
    )
    row = inside_rows.astype(np.int32)
    column = inside_columns.astype(np.int32)
    down = inside_rows - row
    right = inside_columns - column
    flat = fields.ravel()
    at = (
        np.arange(len(fields), dtype=np.int32)[:, None, None] * CANVAS + row
    ) * CANVAS + column
    upper = flat[at] * (1 - right) + flat[at + 1] * right
    lower = flat[at + CANVAS] * (1 - right) + flat[at + CANVAS + 1] * right
    return (
        upper * (1 - down)
        + lower * down
        + abs(rows - inside_rows)
        + abs(columns - inside_columns)
    )


@cache
def _knot_weights() -> np.ndarray:
    """Return smooth bumps, one per knot, over the wide canvas: [wide, knots].

    The squares of each row sum to one.
    """
    knots = np.linspace(-SIZE / 2, SIZE / 2, _KNOTS)
    spacing = knots[1] - knots[0]
    bumps = np.exp(
        -0.5
        * ((np.arange(WIDE)[:, None] - (WIDE - 1) / 2 - knots) / (0.6 * spacing)) ** 2
    )
    return bumps / np.sqrt((bumps**2).sum(axis=1, keepdims=True))
