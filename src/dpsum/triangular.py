"""The inverse of a lower triangular matrix: from an encoder to its weights and back."""

from __future__ import annotations

from dpsum.lazy import np


def inverted(lower: np.ndarray) -> np.ndarray:
    """Return the inverse of a lower triangular matrix, float64 [T, T].

    It is computed row by row, so that its bits do not depend on a library's threads.
    """
    inverse = np.eye(len(lower))
    for row in range(len(lower)):
        factors = lower[row, :row]
        known_part = np.einsum("s,sj->j", factors, inverse[:row])
        inverse[row] -= known_part
        inverse[row] /= lower[row, row]
    return inverse
