"""Clip rows to a norm and add them up: the compiled loop of every private sum.

Kernels that produce the rows themselves call it as well.
"""

from __future__ import annotations

import math

import numpy as np

from dpkernels.compiled import compiled, exact_part, part

# Coordinates processed at a time: their double-precision total stays in the first
# cache.
_BLOCK = 2048


@part
def _norm(row):
    """Return the L2 norm of a float32 row in double precision.

    The square of a float32 cannot overflow a double. A row is added up in lanes, in the
    same way whatever rows are beside it.
    """
    squares = 0.0
    for j in range(row.size):
        value = np.float64(row[j])
        squares += value * value
    return math.sqrt(squares)


@exact_part
def _weight(norm, limit):
    """Return the factor that clips a row of this norm to the limit."""
    return 1.0 if norm <= limit else limit / norm


@exact_part
def _add_row(row, weight, total):
    """Add weight * row to the total, in double precision."""
    for j in range(total.size):
        total[j] += weight * np.float64(row[j])


@exact_part
def _add_four(a, b, c, d, u, v, w, x, total):
    """Add four weighted rows, one after another.

    The total is read and written once for all four.
    """
    for j in range(total.size):
        y = ((total[j] + u * np.float64(a[j])) + v * np.float64(b[j])) + w * np.float64(
            c[j]
        )
        total[j] = y + x * np.float64(d[j])


@exact_part
def add_clipped(rows, limit, total, norms):
    """Add rows of float32 [n, d], clipped to the norm `limit`, to total [d].

    `norms` [n] receives the norms before clipping. Rows are added one after another in
    double precision, so chunks change no bit. A row that is not finite is left out.
    """
    count, dimension = rows.shape
    for i in range(count):
        norms[i] = _norm(rows[i])
    for start in range(0, dimension, _BLOCK):
        stop = min(start + _BLOCK, dimension)
        block = total[start:stop]
        for i in range(0, count, 4):
            if (
                i + 4 <= count
                and norms[i] + norms[i + 1] + norms[i + 2] + norms[i + 3] < math.inf
            ):
                u = _weight(norms[i], limit)
                v = _weight(norms[i + 1], limit)
                w = _weight(norms[i + 2], limit)
                x = _weight(norms[i + 3], limit)
                a = rows[i, start:stop]
                b = rows[i + 1, start:stop]
                c = rows[i + 2, start:stop]
                d = rows[i + 3, start:stop]
                _add_four(a, b, c, d, u, v, w, x, block)
                continue
            for k in range(i, min(i + 4, count)):
                if norms[k] < math.inf:  # NaN fails this comparison, too
                    _add_row(rows[k, start:stop], _weight(norms[k], limit), block)


@compiled
def add_rows(rows, limit, total, norms):
    """Call `add_clipped` from Python."""
    add_clipped(rows, limit, total, norms)
