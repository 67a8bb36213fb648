"""Archives of results, and what differs between two of them."""

import math

import pytest

from dpfedbench import command
from dpfedbench.results.archive import write_archive
from dpfedbench.results.runs_table import collect_cells, collect_runs, write_frame
from dpfedbench.verification import _overlap, compare

from .conftest import change_accounts, change_json


@pytest.fixture
def pack(plan, tmp_path):
    """Return a function that collects the runs of some tables of DP-FedMeta, and packs
    them into an archive in a folder of the name.
    """

    def pack(results, name, items=("table2",)):
        folder = tmp_path / name
        folder.mkdir()
        tables = [plan.items["dp-fedmeta", item] for item in items]
        cells = [cell for table in tables for cell in table.cell_records({})]
        runs = collect_runs(results, [cell["run"] for cell in cells])
        files = [folder / "runs.parquet", folder / "cells.parquet"]
        write_frame(runs, files[0])
        write_frame(collect_cells(results, cells, runs), files[1])
        write_archive(folder, files, folder / "results.zip")
        return folder / "results.zip"

    return pack


@pytest.fixture
def changed_runs(plan):
    """The runs of DP-AGR in Table 2 that a task of one shot has."""
    runs = plan.items["dp-fedmeta", "table2"].runs.values()
    return [run for run in runs if run.method == "dp-agr" and run.task.shots == 1]


def test_compare_is_silent_about_equal_results(results, pack):
    archives = [pack(results, name) for name in ("mine", "other")]
    assert archives[0].read_bytes() == archives[1].read_bytes()
    assert list(compare(archives[0].parent, archives[1])) == []
    assert command.main(["compare", *map(str, archives)]) == 0


def test_compare_names_accuracies_whose_intervals_do_not_overlap(
    results, results_to_change, changed_runs, pack
):
    """Three seeds become exactly 20, 21 and 22 %: t interval 21 -+ 4.303 / sqrt(3) = 18.5
    to 23.5.
    """
    for run in changed_runs:
        path = results_to_change / "runs" / run.folder / "metrics.json"
        accuracy = 20.0 + run.seed
        change_json(path, per_task=[accuracy] * 40, accuracy=accuracy)
    (line,) = compare(pack(results, "mine"), pack(results_to_change, "other"))
    assert line.startswith("dp-fedmeta, table2, dp-agr, glyphs, 5-way 1-shot: accuracy")
    assert line.endswith(" and 18.5 to 23.5")


def test_compare_names_another_epsilon_and_missing_cells(
    results, results_to_change, changed_runs, pack
):
    six = {"epsilon_low": 6.0, "epsilon_high": 6.0}
    change_accounts(results_to_change, [changed_runs[0].folder], proven=six)
    first = pack(results, "mine", ("table2", "repairs"))
    lines = list(compare(first, pack(results_to_change, "other")))
    assert lines[0].endswith("proven ε 4.89 and 6")
    assert lines[-1].startswith(f"only in {first}: ")


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ((1.0, 2.0), (1.5, 3.0), True),
        ((1.0, 2.0), (2.019, 3.0), True),  # apart by 0.95 % of 2
        ((1.0, 2.0), (2.021, 3.0), False),
        ((4.0, math.inf), (5.0, 6.0), True),
        ((7.0, math.inf), (5.0, 6.0), False),
        ((math.inf, math.inf), (math.inf, math.inf), True),
        ((math.nan, math.nan), (math.nan, math.nan), True),
        ((math.nan, math.nan), (1.0, 1.0), False),
    ],
)
def test_ranges_overlap_up_to_a_hundredth(first, second, overlap):
    assert _overlap(first, second, slack=0.01) is overlap
    assert _overlap(second, first, slack=0.01) is overlap
