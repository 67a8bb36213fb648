"""The frame of runs: values that were written by hand, and its data dictionary."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import pytest
import yaml

import dpfedbench
from dpfedbench.errors import BenchError
from dpfedbench.results.columns import UNIT_PREFIXES, run_columns
from dpfedbench.results.columns import names as column_names
from dpfedbench.results.runs_table import (
    collect_cells,
    collect_runs,
    write_frame,
    write_runs,
)
from tools.generate_results_format import PAGE, make_page

matplotlib.use("agg")

PRIVATE = "dp-agr/glyphs/5way-1shot/0123456789/seed{}"
PUBLIC = "maml/glyphs/5way-1shot/abcdef0123/seed0"

SETTINGS = {
    "method": "dp-agr",
    "seed": 0,
    "task": {"ways": 5, "text": None},
    "noise": {"multiplier": 1.0, "kind": "fixed"},
    "participation": {"cohort": 20},
    "within_task": {"groups": ["features", "head"]},
}


def entry(low: float | str, high: float | str, **others: Any) -> dict[str, Any]:
    """Return one profile of an account."""
    return {
        "epsilon_low": low,
        "epsilon_high": high,
        "adjacency": "zero-out",
        "observer": "everyone",
        "status": "proved",
        "explanation": "by hand",
        **others,
    }


def write_run(results: Path, run: str, **files: Mapping[str, Any]) -> None:
    """Write a run's folder; `files` replace the contents of the usual files."""
    folder = results / "runs" / run
    folder.mkdir(parents=True)
    contents = {
        "metrics": {"accuracy": 50.0, "tasks": 2, "per_task": [40.0, 60.0]},
        "training": {"rounds_run": 6, "notices": []},
        "privacy": {"unit": None, "profiles": {}},
        **files,
    }
    settings = contents.pop("config", SETTINGS)
    text = yaml.safe_dump(settings, sort_keys=False)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two seeds of a private run, of which the first is audited, and a public run."""
    results = tmp_path / "results"
    record = {
        "unit": "record",
        "delta": 1e-5,
        "profiles": {"proven": entry("inf", "inf", observer="server", status="void")},
    }
    account = {
        "unit": "client",
        "delta": 1e-6,
        "profiles": {
            "claimed": entry(1.5, 1.5, status="void"),
            "proven": entry(4.5, 4.75),
            "replace_one": entry(9.0, 11.0),
        },
        "also": [record],
    }
    training = {
        "rounds_planned": 8,
        "rounds_run": 6,
        "stopped_by": "budget",
        "noise_multiplier": 1.25,
        "members": [{"accuracy": 0.5}, {"accuracy": 0.7}],
        "notices": ["first", "second"],
    }
    audit = {
        "epsilon": 2.5,
        "confidence": 0.95,
        "status": "below",
        "unit": "client",
        "observer": "everyone",
    }
    files: dict[str, Any] = {"privacy": account, "training": training}
    write_run(results, PRIVATE.format(0), **files, audit=audit)
    write_run(
        results, PRIVATE.format(1), **files, config={**SETTINGS, "within_task": None}
    )
    write_run(
        results,
        PUBLIC,
        config={"method": "maml", "participation": {"cohort": 4}},
        metrics={"accuracy": 90, "ci_low": 88.5, "ci_high": 91.5, "records": 300},
        training={"rounds_run": 3, "seconds": 2.5, "device": "cpu"},
    )
    return results


@pytest.fixture
def frame(results: Path) -> pd.DataFrame:
    """The frame of the three runs, by their names."""
    runs = [PRIVATE.format(0), PRIVATE.format(1), PUBLIC]
    frame = collect_runs(
        results,
        runs,
        papers={"dp-agr": "dp-fedmeta"},
        audited_runs={PRIVATE.format(1): PRIVATE.format(0)},
    )
    return frame.set_index("run")


def full_record(**values: Any) -> dict[str, Any]:
    """Return a record of a cell with all columns that the plan knows."""
    measured = column_names("test")
    names = [name for name in column_names("cells") if name not in measured]
    return {**dict.fromkeys(names), "paper": "dp-fedmeta", "test": "", **values}


def test_collect_cells_takes_the_accuracy_of_the_cells_own_test(
    results: Path,
) -> None:
    """A figure may show a run under another test than its own."""
    runs = collect_runs(results, [PRIVATE.format(0)])
    metrics = {"accuracy": 75.0, "ci_low": 74.0, "per_task": [70.0, 80.0, 75.0]}
    path = results / "runs" / PRIVATE.format(0) / "tests" / "at-5shot.json"
    path.parent.mkdir()
    path.write_text(json.dumps(metrics), encoding="utf-8")
    cells = collect_cells(
        results,
        [
            full_record(cell=0, run=PRIVATE.format(0)),
            full_record(cell=1, run=PRIVATE.format(0), test="at-5shot"),
        ],
        runs,
    )
    assert cells["accuracy"].to_list() == [50.0, 75.0]
    assert cells["test_count"].to_list() == [2, 3]
    assert [list(accuracies) for accuracies in cells["task_accuracies"]] == [
        [40.0, 60.0],
        [70.0, 80.0, 75.0],
    ]
    assert column_names("cells") == list(cells)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(BenchError, match=r"at-5shot\.json lacks 'accuracy'"):
        collect_cells(
            results, [full_record(run=PRIVATE.format(0), test="at-5shot")], runs
        )


def test_collect_runs_has_room_for_three_observers(tmp_path: Path) -> None:
    """DP-FNAS of four parties accounts for the server, another party and everyone."""
    accounts = [
        {
            "unit": "record",
            "delta": 1e-5,
            "profiles": {"proven": entry(epsilon, epsilon, observer=observer)},
        }
        for epsilon, observer in (
            (0.3, "server"),
            (0.2, "another client"),
            (0.1, "everyone"),
        )
    ]
    account = {**accounts[0], "also": accounts[1:]}
    write_run(tmp_path, PRIVATE.format(0), privacy=account)
    (row,) = collect_runs(tmp_path, [PRIVATE.format(0)]).to_dict("records")
    assert row["epsilon_proven_high"] == 0.3
    assert row["second_epsilon_proven_high"] == 0.2
    assert (row["third_epsilon_proven_high"], row["third_observer"]) == (
        0.1,
        "everyone",
    )
    write_run(
        tmp_path,
        PRIVATE.format(1),
        privacy={**account, "also": [*accounts[1:], accounts[0]]},
    )
    with pytest.raises(BenchError, match="accounts for 4 units and observers"):
        collect_runs(tmp_path, [PRIVATE.format(1)])


def test_collect_runs_reads_identity_test_and_training(frame: pd.DataFrame) -> None:
    private = frame.loc[PRIVATE.format(1)]
    expected = {
        "paper": "dp-fedmeta",
        "method": "dp-agr",
        "dataset": "glyphs",
        "task_name": "5way-1shot",
        "key": "0123456789",
        "seed": 1,
        "accuracy": 50.0,
        "test_unit": "task",
        "test_count": 2,
        "rounds_planned": 8,
        "rounds_run": 6,
        "stopped_by": "budget",
        "noise_multiplier": 1.25,
        "notices": "first | second",
    }
    assert {name: private[name] for name in expected} == expected
    assert private["validation_accuracy"] == pytest.approx(60.0)
    assert list(private["task_accuracies"]) == [40.0, 60.0]
    public = frame.loc[PUBLIC]
    assert public["paper"] == ""
    assert (public["test_unit"], public["test_count"]) == ("record", 300)
    assert (public["accuracy_low"], public["accuracy_high"]) == (88.5, 91.5)
    assert pd.isna(private["seconds"])
    assert public["seconds"] == 2.5


def test_collect_runs_reads_both_units_and_the_shared_audit(
    frame: pd.DataFrame,
) -> None:
    for seed in (0, 1):
        row = frame.loc[PRIVATE.format(seed)]
        assert (row["unit"], row["delta"], row["observer"]) == (
            "client",
            1e-6,
            "everyone",
        )
        assert row["epsilon_claimed"] == 1.5
        assert (row["epsilon_proven_low"], row["epsilon_proven_high"]) == (4.5, 4.75)
        assert (row["claimed_status"], row["proven_status"]) == ("void", "proved")
        assert row["epsilon_replace_one"] == 11.0
        assert pd.isna(row["epsilon_image_level"])
        assert (row["epsilon_audited"], row["audit_confidence"]) == (2.5, 0.95)
        assert row["audited_run"] == PRIVATE.format(0)
        assert (row["second_unit"], row["second_delta"]) == ("record", 1e-5)
        assert row["second_epsilon_proven_high"] == math.inf
        assert pd.isna(row["second_epsilon_audited"])
    public = frame.loc[PUBLIC]
    for name in ("unit", "epsilon_claimed", "epsilon_proven_high", "second_unit"):
        assert pd.isna(public[name]), name


def test_collect_runs_has_a_column_for_every_setting(frame: pd.DataFrame) -> None:
    first = frame.loc[PRIVATE.format(0)]
    assert first["task.ways"] == 5
    assert first["noise.multiplier"] == 1.0
    assert first["noise.kind"] == "fixed"
    assert json.loads(first["within_task.groups"]) == ["features", "head"]
    assert pd.isna(frame.loc[PUBLIC, "noise.multiplier"])
    assert frame["participation.cohort"].to_list() == [20, 20, 4]
    assert str(frame["participation.cohort"].dtype) == "Int64"


def test_collect_runs_makes_text_of_a_setting_of_both_kinds(tmp_path: Path) -> None:
    for seed, value in enumerate((0.5, "median", True, None)):
        write_run(tmp_path, PRIVATE.format(seed), config={"clipping": value})
    frame = collect_runs(tmp_path, [PRIVATE.format(seed) for seed in range(4)])
    texts = frame["clipping"].to_list()
    assert texts[:3] == ["0.5", "median", "true"]
    assert pd.isna(texts[3])


def test_collect_runs_refuses_an_account_without_its_values(results: Path) -> None:
    path = results / "runs" / PRIVATE.format(0) / "privacy.json"
    path.write_text(
        json.dumps({"profiles": {"proven": {"unit": "client"}}}), encoding="utf-8"
    )
    with pytest.raises(BenchError, match=r"dp-agr.*seed0 lacks 'adjacency'"):
        collect_runs(results, [PRIVATE.format(0)])


def test_collect_runs_refuses_a_damaged_file(results: Path) -> None:
    damaged = results / "runs" / PUBLIC / "metrics.json"
    damaged.write_text("{", encoding="utf-8")
    with pytest.raises(BenchError, match=re.escape(str(damaged))):
        collect_runs(results, [PUBLIC])


def test_write_runs_keeps_every_value_and_type(results: Path, tmp_path: Path) -> None:
    frame = collect_runs(results, [PRIVATE.format(0), PUBLIC])
    write_runs(frame, tmp_path / "runs.parquet", tmp_path / "runs.csv")
    loaded = pd.read_parquet(tmp_path / "runs.parquet")
    numbers = frame.drop(columns="task_accuracies")
    pd.testing.assert_frame_equal(loaded.drop(columns="task_accuracies"), numbers)
    assert [list(row) for row in loaded["task_accuracies"].dropna()] == [[40.0, 60.0]]
    csv = pd.read_csv(tmp_path / "runs.csv")
    assert list(csv) == list(numbers)
    assert csv["second_epsilon_proven_high"].to_list()[0] == math.inf


def test_load_runs_reads_folders_before_and_the_file_after_collect(
    results: Path,
) -> None:
    unfinished = results / "runs" / PRIVATE.format(2)
    unfinished.mkdir()
    (unfinished / "config.yaml").write_text("method: dp-agr\n", encoding="utf-8")
    before = dpfedbench.load_runs(results)
    assert len(before) == 3
    papers = dict(zip(before["method"], before["paper"], strict=True))
    assert papers == {"dp-agr": "dp-fedmeta", "maml": "dp-fedmeta"}
    assert Path(before["folder"][0]) == results / "runs" / PRIVATE.format(0)
    preset = results / "real"
    preset.mkdir()
    chosen = collect_runs(results, [PUBLIC])
    write_runs(chosen, preset / "runs.parquet", preset / "runs.csv")
    after = dpfedbench.load_runs(preset)
    assert after["run"].to_list() == [PUBLIC]
    assert Path(after["folder"][0]) == results / "runs" / PUBLIC


def test_load_runs_refuses_a_folder_without_runs(tmp_path: Path) -> None:
    """A misspelt name beside a folder `runs`, and results before the first run."""
    results = tmp_path / "results"
    (results / "runs").mkdir(parents=True)
    (tmp_path / "runs").mkdir()
    with pytest.raises(BenchError, match=r"resluts has no runs"):
        dpfedbench.load_runs(tmp_path / "resluts")
    with pytest.raises(BenchError, match="has no finished run yet"):
        dpfedbench.load_runs(results)
    elsewhere = tmp_path / "elsewhere" / "deeper"
    elsewhere.mkdir(parents=True)
    with pytest.raises(BenchError, match="has no runs"):
        dpfedbench.load_runs(elsewhere)


def without_prefix(name: str) -> str:
    """Return the name of a column without the prefix of a further unit."""
    for prefix in UNIT_PREFIXES[1:]:
        name = name.removeprefix(prefix)
    return name


def test_results_format_page_is_that_of_the_columns(frame: pd.DataFrame) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == make_page(), "run tools/generate_results_format.py"
    names = run_columns()
    assert list(frame.reset_index())[: len(names)] == names
    undocumented = [
        name
        for name in [*names, *column_names("cells")]
        if f"| `{without_prefix(name)}` |" not in page
    ]
    assert undocumented == []


def test_results_format_examples_run_as_printed(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [PRIVATE.format(0), PRIVATE.format(1), PUBLIC]
    frame = collect_runs(results, runs)
    write_runs(frame, results / "runs.parquet", results / "runs.csv")
    cell_values = [
        ("table2", 0, "dp-agr", None, PRIVATE.format(0)),
        ("table2", 0, "dp-agr", None, PRIVATE.format(1)),
        ("table2", 1, "maml", None, PUBLIC),
        ("figure4b", 0, "dp-agr", 2.0, PRIVATE.format(0)),
    ]
    names = ("item", "cell", "series", "x", "run")
    records = [dict(zip(names, values, strict=True)) for values in cell_values]
    write_frame(
        collect_cells(results, [full_record(**record) for record in records], frame),
        results / "cells.parquet",
    )
    monkeypatch.chdir(results.parent)
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    assert len(blocks) == 4
    variables: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), variables)
    assert variables["summary"].to_dict("list") == {
        "participation.cohort": [20],
        "mean": [50.0],
        "std": [0.0],
    }
    assert len(variables["both"]) == 6
    printed = capsys.readouterr().out
    assert re.search(r"dp-agr +50.0\nmaml +90.0", printed)
