"""L2 norms and clipping of one contribution, for every finite array.

The squares of 1e200 and of 1e-200 are outside the range of double precision. Such
arrays are first scaled by their largest magnitude, so that no finite array raises an
error or gets a wrong norm.
"""

from __future__ import annotations

import math
import sys

from dpsum.lazy import np

_LOW = 1e-145
_HIGH = 1e145
_LEAST_FACTOR = 1e-290


def l2_norm(values: np.ndarray) -> float:
    """Return the L2 norm of a float64 vector [d].

    Returns:
        NaN where a coordinate is not finite; the largest double where the norm is
        beyond it.
    """
    if not np.isfinite(values).all():
        return math.nan
    magnitudes = np.abs(values)
    largest = float(np.max(magnitudes, initial=0.0))
    scale = usual_scale(largest)
    if scale == 1.0:
        scaled = values
    else:
        scaled = values / scale
    square = math.fsum(scaled * scaled)
    norm = scale * math.sqrt(square)
    return min(norm, sys.float_info.max)


def usual_scale(largest: float) -> float:
    """Return the divisor of a vector before its coordinates are squared.

    Args:
        largest: the largest magnitude of its coordinates.

    Returns:
        1 where the squares are in the range of double precision, else `largest`.
    """
    if largest == 0.0 or _LOW < largest < _HIGH:
        return 1.0
    return largest


def clip(values: np.ndarray, norm: float, limit: float) -> np.ndarray:
    """Return a float64 vector [d] scaled down to the norm `limit`.

    This is the reference definition of clipping: values times min(1, limit / norm).
    Other forms compute the same faster. A test, below `tests/` or that of a package,
    holds each equal:

    | form | test |
    |---|---|
    | `dpsum.private_sum.add_rows` | `dpsum/test_clipping_forms.py` |
    | `dpfedbench.models.torch_sums.add_on_device` | `dpsum/test_clipping_forms.py` |
    | `dpkernels.clipped_sum.add_rows` | `dpsum/test_clipping_forms.py` |
    | `dpsum.group_clipping.clip_groups` | `dpsum/test_clipping_forms.py` |
    | `dpsum.group_clipping.add_rows_by_group` | `dpsum/test_group_clipping.py` |
    | `dpsum.secure.SecureSum` | `dpsum/test_secure_sum.py` |
    | `dpkernels.linear.LinearHeadGradients` | `packages/dpkernels/tests/test_linear.py` |
    | `dpkernels.lstm.FastLstm` | `packages/dpkernels/tests/test_lstm.py` |

    Args:
        values: finite coordinates.
        norm: their `l2_norm`. A vector of norm at most `limit` is returned as it is.
    """
    if norm <= limit:
        return values
    factor = limit / norm
    if norm < _HIGH and factor > _LEAST_FACTOR:
        return np.asarray(factor * values)
    # The factor alone would lose precision or be zero, and the norm may be beyond the
    # largest double.
    scaled = values / np.max(np.abs(values))
    return np.asarray((limit / l2_norm(scaled)) * scaled)
