"""The ranking of configurations at a given ε, by rows that were written by hand."""

import math

import pandas as pd

from dpfedbench.results.configurations import (
    load_configurations,
    rank,
    read_configurations,
    with_groups,
)
from dpfedbench.results.runs_table import collect_cells, collect_runs, write_frame

from .test_answer import row as answer_row


def row(name, accuracy, epsilon, **others):
    """Return a private configuration of DP-AGR on glyphs, unless values say other."""
    return answer_row(name, accuracy, (epsilon / 2, epsilon), **others)


def ranked(*rows, epsilon=2.0):
    asked = {"dataset": "glyphs", "task": "5-way 1-shot", "unit": "client"}
    ranking = rank(with_groups(pd.DataFrame(rows)), **asked, epsilon=epsilon)
    return ranking["variant"].to_list()


def test_rank_puts_the_most_accurate_within_epsilon_first():
    rows = [row("worse", 60, 1.0), row("better", 70, 2.0), row("beyond", 90, 2.01)]
    assert ranked(*rows) == ["better", "worse"]
    assert ranked(*rows, epsilon=8.0) == ["beyond", "better", "worse"]


def test_rank_leaves_out_what_is_not_proven_or_of_something_else():
    assert ranked(
        row("good", 50, 1.0),
        row("void", 99, 1.0, proven_status="void"),
        row("refuted", 99, 1.0, proven_status="refuted"),
        row("infinite", 99, math.inf),
        row("records", 99, 1.0, unit="record"),
        row("digits", 99, 1.0, dataset="digits"),
        row("5-shot", 99, 1.0, tested="5-way 5-shot"),
    ) == ["good"]


def test_load_configurations_equals_the_rows_of_the_plan(plan, results, tmp_path):
    cells = [cell for cell in plan.cell_records() if cell["item"] == "table2"]
    cells = [cell for cell in cells if (results / "runs" / cell["run"]).exists()]
    (tmp_path / "runs").symlink_to(results / "runs")
    runs = collect_runs(tmp_path, [cell["run"] for cell in cells])
    write_frame(runs, tmp_path / "runs.parquet")
    write_frame(collect_cells(tmp_path, cells, runs), tmp_path / "cells.parquet")
    loaded = load_configurations(tmp_path)
    expected = read_configurations(cells, tmp_path)
    names = ["folder", "unit", "group", "accuracy", "epsilon_proven_high", "seeds"]
    pd.testing.assert_frame_equal(loaded[names], expected[names], check_dtype=False)
    assert set(loaded["group"]) == {"private", "not private", "no private data"}
