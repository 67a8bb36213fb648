"""The compiled sum of clipped rows against its definition in extended precision."""

import math

import numpy as np
import pytest

from dpkernels.clipped_sum import add_rows


@pytest.mark.parametrize("limit", [0.5, 30.0, math.inf])
def test_add_rows_adds_rows_clipped_by_definition(limit):
    """Norms are 1e-30 to 1e33. Rows that are not finite count as zero."""
    rows = np.random.default_rng(3).normal(size=(40, 257))
    rows *= np.logspace(-30, 32, 40)[:, None]
    rows[3] = 0.0
    rows[7, 0] = math.nan
    rows[9, -1] = math.inf
    rows = rows.astype(np.float32)
    finite = np.isfinite(rows).all(axis=1)
    values = rows[finite].astype(np.longdouble)
    exact_norms = np.sqrt((values**2).sum(axis=1))
    factors = np.minimum(1, limit / np.maximum(exact_norms, np.longdouble(1e-300)))
    expected = (values * factors[:, None]).sum(axis=0).astype(float)
    total = np.zeros(257)
    norms = np.empty(40)
    add_rows(rows, limit, total, norms)
    tolerance = 1e-13 * min(limit * 40, np.abs(expected).max())
    np.testing.assert_allclose(total, expected, rtol=1e-11, atol=tolerance)
    np.testing.assert_allclose(norms[finite], exact_norms.astype(float), rtol=1e-13)
    assert not np.isfinite(norms[~finite]).any()
