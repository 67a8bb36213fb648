"""Archives of results, and what differs between two of them."""

import json
import math
import shutil
import zipfile
from pathlib import Path

import pytest

from dpfedbench import command
from dpfedbench.errors import BenchError
from dpfedbench.experiments.plan import Plan
from dpfedbench.results.archive import write_archive
from dpfedbench.results.runs_table import collect_cells, collect_runs, write_frame
from dpfedbench.verification import _overlap, compare


def write_frames(folder: Path, plan: Plan, items: tuple[str, ...]) -> Path:
    """Collect the runs of some tables of DP-FedMeta, and pack them."""
    cells = [
        cell
        for name in items
        for cell in plan.items["dp-fedmeta", name].cell_records(plan.audited_runs())
    ]
    runs = collect_runs(folder, [cell["run"] for cell in cells])
    write_frame(runs, folder / "runs.parquet")
    write_frame(collect_cells(folder, cells, runs), folder / "cells.parquet")
    archive = folder / "results.zip"
    files = [folder / "runs.parquet", folder / "cells.parquet"]
    write_archive(folder, files, archive)
    return archive


@pytest.fixture
def other(results: Path, tmp_path: Path) -> Path:
    """A copy of the results folder."""
    folder = tmp_path / "other"
    shutil.copytree(results, folder)
    return folder


@pytest.fixture
def mine(results: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    shutil.copytree(results, folder)
    return folder


def change(path: Path, **values: object) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **values}), encoding="utf-8")


def test_archive_has_the_same_bytes_each_time(mine: Path, plan: Plan) -> None:
    first = write_frames(mine, plan, ("table2",)).read_bytes()
    assert write_frames(mine, plan, ("table2",)).read_bytes() == first
    with zipfile.ZipFile(mine / "results.zip") as archive:
        assert archive.namelist() == ["cells.parquet", "runs.parquet"]


def test_compare_is_silent_about_equal_results(
    mine: Path, other: Path, plan: Plan
) -> None:
    archives = [write_frames(folder, plan, ("table2",)) for folder in (mine, other)]
    assert list(compare(*archives)) == []
    assert list(compare(mine, archives[1])) == []


def test_compare_names_accuracies_whose_intervals_do_not_overlap(
    mine: Path, other: Path, plan: Plan
) -> None:
    """Three seeds of DP-AGR with 75, 76.5 and 78 % on average become exactly 20, 21 and
    22 %: t interval 21 -+ 4.303 / sqrt(3) = 18.5 to 23.5.
    """
    item = plan.items["dp-fedmeta", "table2"]
    runs = [run for run in item.runs.values() if run.method == "dp-agr"]
    chosen = [run for run in runs if run.task.shots == 1]
    for run in chosen:
        path = other / "runs" / run.folder / "metrics.json"
        change(path, per_task=[20.0 + run.seed] * 40, accuracy=20.0 + run.seed)
    lines = list(
        compare(*(write_frames(folder, plan, ("table2",)) for folder in (mine, other)))
    )
    assert len(lines) == 1
    assert lines[0].startswith(
        "dp-fedmeta, table2, dp-agr, glyphs, 5-way 1-shot: accuracy "
    )
    assert lines[0].endswith(" and 18.5 to 23.5")


def test_compare_names_another_epsilon_and_missing_cells(
    mine: Path, other: Path, plan: Plan
) -> None:
    item = plan.items["dp-fedmeta", "table2"]
    run = next(run for run in item.runs.values() if run.method == "dp-agr")
    path = other / "runs" / run.folder / "privacy.json"
    profiles = json.loads(path.read_text(encoding="utf-8"))["profiles"]
    profiles["proven"] |= {"epsilon_low": 6.0, "epsilon_high": 6.0}
    change(path, profiles=profiles)
    archives = [
        write_frames(mine, plan, ("table2", "repairs")),
        write_frames(other, plan, ("table2",)),
    ]
    lines = list(compare(*archives))
    assert lines[0].endswith("proven ε 4.89 and 6")
    assert lines[-1].startswith(f"only in {archives[0]}: ")
    assert lines[-1].endswith(" cells of dp-fedmeta repairs")


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
def test_ranges_overlap_up_to_a_hundredth(
    first: tuple[float, float], second: tuple[float, float], overlap: bool
) -> None:
    assert _overlap(first, second, slack=0.01) is overlap
    assert _overlap(second, first, slack=0.01) is overlap


@pytest.mark.parametrize("frame", [None, b"PAR1 is no frame"])
def test_compare_refuses_what_is_no_archive(
    tmp_path: Path, frame: bytes | None
) -> None:
    path = tmp_path / "results.zip"
    path.write_bytes(b"PK")
    if frame is not None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("runs.parquet", frame)
    with pytest.raises(BenchError, match=r"results\.zip is not an archive of results"):
        list(compare(path, path))


def test_command_compare_prints_and_counts(
    mine: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = str(write_frames(mine, plan, ("table2",)))
    assert command.main(["compare", archive, archive]) == 0
    assert capsys.readouterr().out == "no cell differs beyond its interval\n"
    assert command.main(["compare", archive]) == 1
