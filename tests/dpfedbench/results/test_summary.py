"""Rows over seeds: means and their intervals."""

import math

import pytest

from dpfedbench.results.summary import read_rows

from .conftest import change_accounts, change_json, runs_of

STUDENT_T = 4.302653
"""95 % quantile of Student's t of two degrees of freedom, from its table."""


def test_row_of_three_seeds_has_students_interval_of_their_accuracies(
    described, results_to_change
):
    """60, 62 and 67: standard deviation sqrt(26 / 2). The times are 10, 11 and 12."""
    cells = [cell for cell in described("table2").cells if cell["cell"] == 2]
    for run, accuracy in zip(runs_of(cells), (60.0, 62.0, 67.0), strict=True):
        path = results_to_change / "runs" / run / "metrics.json"
        change_json(path, accuracy=accuracy)
    row = read_rows(results_to_change, cells).iloc[0]
    half = STUDENT_T * math.sqrt(26 / 2) / math.sqrt(3)
    ends = (row["accuracy_low"], row["accuracy_high"])
    assert row["accuracy"] == pytest.approx(63)
    assert ends == pytest.approx((63 - half, 63 + half), rel=1e-6)
    half = STUDENT_T / math.sqrt(3)
    ends = (row["milliseconds_low"], row["milliseconds_high"])
    assert row["milliseconds"] == pytest.approx(11)
    assert ends == pytest.approx((11 - half, 11 + half), rel=1e-6)
    assert row["interval_over"] == "seeds"


def test_row_has_the_seed_of_the_largest_proven_epsilon_not_of_the_largest_claim(
    described, results_to_change
):
    """The proven epsilon of the seeds rises, 3, 4, 5, while the claimed one falls."""
    cells = [cell for cell in described("table2").cells if cell["cell"] == 2]
    for index, run in enumerate(runs_of(cells)):
        claimed = {"epsilon_high": 2.0 - 0.5 * index}
        proven = {"epsilon_low": 1.0, "epsilon_high": 3.0 + index}
        change_accounts(results_to_change, [run], claimed=claimed, proven=proven)
    row = read_rows(results_to_change, cells).iloc[0]
    assert row["epsilon_proven_high"] == 5.0
    assert row["epsilon_claimed"] == 1.0
