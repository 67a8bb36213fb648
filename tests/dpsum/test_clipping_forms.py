"""Every form of clipping computes the reference definition, min(1, C / norm)."""

import math

import numpy as np
import pytest
import torch

from dpfedbench.models.torch_sums import add_on_device
from dpkernels.clipped_sum import add_rows as add_compiled
from dpsum.group_clipping import CoordinateGroups, clip_groups
from dpsum.private_sum import add_rows


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


def test_clip_groups_of_one_group_is_the_definition():
    groups = CoordinateGroups((0, 257))
    for row in make_rows():
        clipped = clip_groups(row.astype(float), groups, (0.5,))
        expected = clip_by_definition(row, np.longdouble(0.5)).astype(float)
        np.testing.assert_allclose(clipped, expected, rtol=1e-14)
