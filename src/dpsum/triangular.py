"""The inverse of a lower triangular matrix: an encoder from its noise's weights, and
back.
"""

from __future__ import annotations

from dpsum.lazy import np


def inverted(lower: np.ndarray) -> np.ndarray:
    """The inverse of a lower triangular matrix, float64 [T, T], row by row: no
    library's threads are in its bits.
    """
    inverse = np.eye(len(lower))
    for row in range(len(lower)):
        known_part = np.einsum("s,sj->j", lower[row, :row], inverse[:row])
        inverse[row] -= known_part
        inverse[row] /= lower[row, row]
    return inverse
