"""Every form of clipping computes the reference definition, min(1, C / norm)."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfedbench.models.kernels import _add_rows_by_numpy
from dpfedbench.models.torch_sums import add_on_device
from dpkernels.clipped_sum import add_rows as add_compiled
from dpsum.group_clipping import CoordinateGroups, clip_groups
from dpsum.norms import clip, l2_norm
from dpsum.private_sum import add_rows

TESTS = Path(__file__).resolve().parents[1]
LIMIT = 0.5
FORMS = {
    "dpsum": add_rows,
    "numpy": _add_rows_by_numpy,
    "device": lambda rows, *rest: add_on_device(torch.from_numpy(rows), *rest),
    "compiled": add_compiled,
}


def make_rows():
    """Return rows [9, 7] below, at and far above the limit; two are not finite."""
    rows = np.random.default_rng(3).normal(size=(9, 7)).astype(np.float32)
    rows[0] = 0.0
    rows[1] *= 1e-3
    rows[2] = [0.5, 0, 0, 0, 0, 0, 0]
    rows[3] *= 1e15
    rows[4, 2] = np.nan
    rows[5, 1] = np.inf
    return rows


def clip_by_definition(row):
    """Return a row times min(1, limit / norm) in extended precision; 0 if not finite."""
    values = row.astype(np.longdouble)
    if not np.isfinite(row).all() or not row.any():
        return np.zeros_like(values)
    norm = np.sqrt((values * values).sum())
    return values * min(np.longdouble(1), np.longdouble(LIMIT) / norm)


@pytest.mark.parametrize("form", FORMS)
def test_clipping_form_adds_clipped_rows(form):
    rows = make_rows()
    total = np.zeros(7)
    FORMS[form](rows, LIMIT, total, np.empty(9))
    expected = sum(map(clip_by_definition, rows)).astype(float)
    np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-14)


def test_clip_and_clip_groups_scale_one_row():
    for row in make_rows():
        if not np.isfinite(row).all():
            continue
        values = row.astype(np.float64)
        expected = clip_by_definition(row).astype(float)
        clipped = clip(values, l2_norm(values), LIMIT)
        np.testing.assert_allclose(clipped, expected, rtol=1e-14)
        clipped_group = clip_groups(values, CoordinateGroups((0, 7)), (LIMIT,))
        np.testing.assert_allclose(clipped_group, expected, rtol=1e-14)


def test_clipping_table_names_existing_forms_and_tests():
    entries = re.findall(r"\| `([\w.]+)` \| `([\w/.]+)` \|", clip.__doc__ or "")
    assert len(entries) >= 9
    for form, test in entries:
        module, _, name = form.rpartition(".")
        assert hasattr(importlib.import_module(module), name)
        assert (TESTS / test).is_file()
