"""Adding up rows, each cut to a norm: what every private sum does, compiled, also for
kernels that make the rows.
"""

from __future__ import annotations

import math

import numpy as np

from dpkernels.compiled import compiled, exact_part, part

# coordinates worked on at a time: their double-precision total stays in the first cache
_BLOCK = 2048


@part
def _norm(row):
    """L2 norm of a float32 row in double precision: a float32's square cannot overflow
    a double.

    A row is added up in lanes, the same way whatever rows are beside it.
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
    """total += weight * row, in double precision."""
    for j in range(total.size):
        total[j] += weight * np.float64(row[j])


@exact_part
def _add_four(a, b, c, d, u, v, w, x, total):
    """The same of four rows, one after another, for each time that the total is read
    and written.
    """
    for j in range(total.size):
        y = ((total[j] + u * np.float64(a[j])) + v * np.float64(b[j])) + w * np.float64(
            c[j]
        )
        total[j] = y + x * np.float64(d[j])


@exact_part
def add_clipped(rows, limit, total, norms):
    """Add the rows of float32 [n, d], each cut to the norm `limit`, to total [d]; norms
    [n] = theirs, before that.

    Row after row in double precision, so chunks change no bit. A row that is not finite
    is left out.
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
                if norms[k] < math.inf:  # which NaN is not either
                    _add_row(rows[k, start:stop], _weight(norms[k], limit), block)


@compiled
def add_rows(rows, limit, total, norms):
    """`add_clipped`, for Python to call."""
    add_clipped(rows, limit, total, norms)
