"""Every form of clipping computes the reference definition, min(1, C / norm)."""

import math
import sys

import mpmath
import numpy as np
import pytest
import torch

from dpfedbench.training.mechanisms import add_on_device
from dpkernels.clipped_sum import add_rows as add_compiled
from dpsum.group_clipping import CoordinateGroups, add_rows_by_group
from dpsum.private_sum import add_rows

LARGEST = sys.float_info.max
SMALLEST = 5e-324


def add_on(device):
    return lambda rows, *rest: add_on_device(torch.from_numpy(rows).to(device), *rest)


FORMS = [
    pytest.param(add_rows, id="dpsum"),
    pytest.param(add_compiled, id="compiled"),
    pytest.param(add_on("cpu"), id="device"),
    pytest.param(add_on("cuda"), id="cuda", marks=pytest.mark.cuda),
]


def make_rows():
    """Return rows [40, 257] of norms from 0 to 1e33; rows 7 and 9 are not finite."""
    rows = np.random.default_rng(3).normal(size=(40, 257))
    rows *= np.logspace(-30, 32, 40)[:, None]
    rows[3] = 0.0
    rows[3, 0] = 0.5
    rows[5] = 0.0
    rows[7, 0] = math.nan
    rows[9, -1] = math.inf
    return rows.astype(np.float32)


def clip_by_definition(row, limit):
    """Return a row times min(1, limit / norm) in extended precision; 0 if not finite."""
    values = row.astype(np.longdouble)
    if not np.isfinite(row).all() or not row.any():
        return np.zeros_like(values)
    norm = np.sqrt((values * values).sum())
    return values * min(np.longdouble(1), limit / norm)


@pytest.mark.parametrize("limit", [0.5, 30.0, math.inf])
@pytest.mark.parametrize("form", FORMS)
def test_clipping_form_adds_clipped_rows(form, limit):
    rows = make_rows()
    total = np.linspace(-1, 1, 257)
    expected = total + sum(clip_by_definition(row, limit) for row in rows)
    expected = expected.astype(float)
    norms = np.empty(40)
    form(rows, limit, total, norms)
    tolerance = 1e-13 * min(limit * 40, np.abs(expected).max())
    np.testing.assert_allclose(total, expected, rtol=1e-11, atol=tolerance)
    finite = np.isfinite(rows).all(axis=1)
    exact_norms = np.linalg.norm(rows[finite].astype(float), axis=1)
    np.testing.assert_allclose(norms[finite], exact_norms, rtol=1e-13)


@pytest.mark.parametrize(
    "row",
    [
        [1.2e154, 1.2e154, 0.0],  # squares are finite, their sum is not
        [1e308, 1e308, -1e308],
        [LARGEST, LARGEST, LARGEST],  # the norm is beyond the largest double
        [LARGEST, 0.0, 0.0],
        [1e308, 1e-308, SMALLEST],
        [1e200, -0.0, 1.0],
        [1e-200, 1e-200, 0.0],  # squares are 0
        [SMALLEST, 0.0, -SMALLEST],
        [-0.0, 0.0, -0.0],
    ],
)
@pytest.mark.parametrize("limit", [1e-20, 0.5, 1e150, math.inf])
def test_clipping_of_huge_and_tiny_values_equals_60_digits(row, limit):
    total = np.zeros(3)
    norms = np.empty(1)
    add_rows(np.array([row]), limit, total, norms)
    with mpmath.workdps(60):
        norm = mpmath.norm(row)
        factor = 1 if norm <= limit else limit / norm
        clipped = [float(factor * mpmath.mpf(value)) for value in row]
    assert norms[0] == pytest.approx(float(min(norm, LARGEST)), rel=1e-15)
    assert total == pytest.approx(clipped, rel=1e-14, abs=SMALLEST)
    grouped = np.zeros(3)
    one_group = CoordinateGroups((0, 3))
    add_rows_by_group(
        add_rows, one_group, np.array([row]), (limit,), grouped, np.empty((1, 1))
    )
    assert grouped == pytest.approx(clipped, rel=1e-14, abs=SMALLEST)
