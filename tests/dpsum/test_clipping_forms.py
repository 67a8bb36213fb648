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


def rows() -> np.ndarray:
    """Rows [9, 7] below, at and far above the limit, and two that are not finite."""
    drawn = np.random.default_rng(3).normal(size=(9, 7)).astype(np.float32)
    drawn[0] = 0.0
    drawn[1] *= 1e-3
    drawn[2] = [0.5, 0, 0, 0, 0, 0, 0]
    drawn[3] *= 1e15
    drawn[4, 2] = np.nan
    drawn[5, 1] = np.inf
    return drawn


def clipped_by_hand(row: np.ndarray) -> np.ndarray:
    """Return a row times min(1, limit / norm) in extended precision; 0 if not finite."""
    if not np.isfinite(row).all():
        return np.zeros(len(row), np.longdouble)
    wide = row.astype(np.longdouble)
    norm = np.sqrt((wide * wide).sum())
    return wide * min(np.longdouble(1), np.longdouble(LIMIT) / norm) if norm else wide


FORMS = {
    "dpsum": add_rows,
    "numpy": _add_rows_by_numpy,
    "device": lambda rows, *rest: add_on_device(torch.from_numpy(rows), *rest),
    "compiled": add_compiled,
}


@pytest.mark.parametrize("form", FORMS)
def test_clipping_form_adds_what_the_definition_says(form: str) -> None:
    contributions = rows()
    total = np.zeros(7)
    norms = np.empty(9)
    FORMS[form](contributions, LIMIT, total, norms)
    expected = sum(map(clipped_by_hand, contributions))
    np.testing.assert_allclose(total, expected.astype(float), rtol=1e-12, atol=1e-14)


def test_clip_and_clip_groups_scale_one_row_as_the_definition_says() -> None:
    for row in rows():
        if not np.isfinite(row).all():
            continue
        values = row.astype(np.float64)
        expected = clipped_by_hand(row).astype(float)
        found = clip(values, l2_norm(values), LIMIT)
        np.testing.assert_allclose(found, expected, rtol=1e-14)
        by_group = clip_groups(values, CoordinateGroups((0, 7)), (LIMIT,))
        np.testing.assert_allclose(by_group, expected, rtol=1e-14)


def test_clipping_table_names_forms_and_tests_that_exist() -> None:
    entries = re.findall(r"\| `([\w.]+)` \| `([\w/.]+)` \|", clip.__doc__ or "")
    assert len(entries) >= 9
    for form, test in entries:
        module, _, name = form.rpartition(".")
        assert hasattr(importlib.import_module(module), name)
        assert (TESTS / test).is_file()
