"""The frame of runs: values that were written by hand, and its data dictionary."""

import json
import math

import matplotlib
import pandas as pd
import pytest

import dpfedbench
from dpfedbench.errors import BenchError
from dpfedbench.files import write_json, write_text
from dpfedbench.results.columns import names as column_names
from dpfedbench.results.columns import run_columns
from dpfedbench.results.runs_table import (
    collect_cells,
    collect_runs,
    write_frame,
    write_runs,
)
from tests.pages import code_blocks, read_page
from tools.generate_results_format import make_page

from .conftest import make_profile, write_files

matplotlib.use("agg")

PRIVATE = [f"dp-agr/glyphs/5way-1shot/0123456789/seed{seed}" for seed in range(4)]
PUBLIC = "maml/glyphs/5way-1shot/abcdef0123/seed0"
RUNS = [*PRIVATE[:2], PUBLIC]

SETTINGS = {
    "method": "dp-agr",
    "seed": 0,
    "task": {"ways": 5, "text": None},
    "noise": {"multiplier": 1.0, "kind": "fixed"},
    "participation": {"cohort": 20},
    "within_task": {"groups": ["features", "head"]},
}


def write_run(results, run, config=SETTINGS, **files):
    """Write a run's folder; `files` replace the contents of the usual files."""
    contents = {
        "metrics": {"accuracy": 50.0, "per_task": [40.0, 60.0]},
        "training": {"rounds_run": 6},
        "privacy": {"unit": None, "profiles": {}},
    }
    write_files(results, run, json.dumps(config), **contents | files)  # JSON is YAML


def account_of_record(epsilon, observer, **values):
    profile = make_profile("proven", epsilon, observer=observer, **values)
    return {"unit": "record", "delta": 1e-5, "profiles": {"proven": profile}}


@pytest.fixture
def results(tmp_path):
    """Two seeds of a private run, of which the first is audited, and a public run."""
    results = tmp_path / "results"
    profiles = {
        "claimed": make_profile("claimed", 1.5, status="void"),
        "proven": make_profile("proven", 4.5, epsilon_high=4.75),
        "replace_one": make_profile("replace_one", 9.0, epsilon_high=11.0),
    }
    account = {"unit": "client", "delta": 1e-6, "profiles": profiles}
    account["also"] = [account_of_record(math.inf, "server", status="void")]
    training = {"rounds_planned": 8, "rounds_run": 6, "noise_multiplier": 1.25}
    training["members"] = [{"accuracy": 0.5}, {"accuracy": 0.7}]
    training["notices"] = ["first", "second"]
    files = {"privacy": account, "training": training}
    audit = {"epsilon": 2.5, "confidence": 0.95}
    audit |= {"unit": "client", "observer": "everyone", "epsilon_proven": 4.75}
    audit |= dict.fromkeys(("status", "method", "reason", "epsilon_ideal", "chance"))
    audit |= {"another_mechanism": False}
    write_run(results, PRIVATE[0], **files, audit=audit)
    write_run(results, PRIVATE[1], config={**SETTINGS, "within_task": None}, **files)
    write_run(
        results,
        PUBLIC,
        config={"method": "maml", "participation": {"cohort": 4}},
        metrics={"accuracy": 90, "ci_low": 88.5, "ci_high": 91.5, "records": 300},
        training={"rounds_run": 3, "seconds": 2.5, "device": "cpu"},
    )
    return results


@pytest.fixture
def frame(results):
    """The frame of the three runs, by their names."""
    papers = {"dp-agr": "dp-fedmeta"}
    audited_runs = {PRIVATE[1]: PRIVATE[0]}
    frame = collect_runs(results, RUNS, papers=papers, audited_runs=audited_runs)
    return frame.set_index("run")


def assert_values(row, **expected):
    assert {name: row[name] for name in expected} == expected


def test_collect_runs_reads_identity_test_and_training(frame):
    private = frame.loc[PRIVATE[1]]
    assert_values(private, paper="dp-fedmeta", method="dp-agr", dataset="glyphs")
    assert_values(private, task_name="5way-1shot", key="0123456789", seed=1)
    assert_values(private, accuracy=50.0, test_unit="task", test_count=2)
    assert_values(private, rounds_planned=8, rounds_run=6, noise_multiplier=1.25)
    assert private["notices"] == "first | second"
    assert private["validation_accuracy"] == pytest.approx(60.0)
    assert list(private["task_accuracies"]) == [40.0, 60.0]
    assert pd.isna(private["seconds"])
    public = frame.loc[PUBLIC]
    assert_values(public, test_unit="record", test_count=300, seconds=2.5)
    assert_values(public, accuracy_low=88.5, accuracy_high=91.5)


def test_collect_runs_reads_both_units_and_the_shared_audit(frame):
    for run in PRIVATE[:2]:
        row = frame.loc[run]
        assert_values(row, unit="client", delta=1e-6, observer="everyone")
        assert_values(row, epsilon_claimed=1.5, claimed_status="void")
        assert_values(row, epsilon_proven_low=4.5, epsilon_proven_high=4.75)
        assert_values(row, proven_status="proved", epsilon_replace_one=11.0)
        assert_values(row, epsilon_audited=2.5, audit_confidence=0.95)
        assert_values(row, audited_run=PRIVATE[0], second_unit="record")
        assert_values(row, second_delta=1e-5, second_epsilon_proven_high=math.inf)
        assert pd.isna(row["second_epsilon_audited"])
    absent = ["unit", "epsilon_claimed", "epsilon_proven_high", "second_unit"]
    assert frame.loc[PUBLIC, absent].isna().all()


def test_collect_runs_has_room_for_three_observers(tmp_path):
    """DP-FNAS of four parties accounts for the server, another party and everyone."""
    first = account_of_record(0.3, "server")
    further = [account_of_record(0.2, "client"), account_of_record(0.1, "everyone")]
    write_run(tmp_path, PRIVATE[0], privacy={**first, "also": further})
    (row,) = collect_runs(tmp_path, [PRIVATE[0]]).to_dict("records")
    prefixes = ("", "second_", "third_")
    epsilons = [row[f"{prefix}epsilon_proven_high"] for prefix in prefixes]
    assert epsilons == [0.3, 0.2, 0.1]
    assert row["third_observer"] == "everyone"
    write_run(tmp_path, PRIVATE[1], privacy={**first, "also": [*further, first]})
    with pytest.raises(BenchError, match="accounts for 4 units and observers"):
        collect_runs(tmp_path, [PRIVATE[1]])


def test_collect_runs_has_a_column_for_every_setting(frame, tmp_path):
    """A setting that is a number in one run and a word in another is a text."""
    first = frame.loc[PRIVATE[0]]
    names = ["task.ways", "noise.multiplier", "noise.kind"]
    assert first[names].tolist() == [5, 1.0, "fixed"]
    assert json.loads(first["within_task.groups"]) == ["features", "head"]
    assert pd.isna(frame.loc[PUBLIC, "noise.multiplier"])
    assert frame["participation.cohort"].to_list() == [20, 20, 4]
    assert str(frame["participation.cohort"].dtype) == "Int64"
    for run, value in zip(PRIVATE, (0.5, "median", True, None), strict=True):
        write_run(tmp_path, run, config={"clipping": value})
    texts = collect_runs(tmp_path, PRIVATE)["clipping"].to_list()
    assert texts[:3] == ["0.5", "median", "true"]
    assert pd.isna(texts[3])


def full_record(**values):
    return {"paper": "dp-fedmeta", "cell": 0, "test": "", **values}


def test_collect_cells_takes_the_accuracy_of_the_cells_own_test(results):
    """A figure may show a run under another test than its own."""
    run = PRIVATE[0]
    metrics = {"accuracy": 75.0, "ci_low": 74.0, "per_task": [70.0, 80.0, 75.0]}
    write_json(results / "runs" / run / "tests" / "at-5shot.json", metrics)
    records = [full_record(run=run), full_record(run=run, test="at-5shot")]
    cells = collect_cells(results, records, collect_runs(results, [run]))
    assert cells["accuracy"].to_list() == [50.0, 75.0]
    assert cells["test_count"].to_list() == [2, 3]
    accuracies = [list(values) for values in cells["task_accuracies"]]
    assert accuracies == [[40.0, 60.0], [70.0, 80.0, 75.0]]
    assert column_names("cells") == list(cells)


def test_load_runs_reads_folders_before_and_the_file_after_collect(results):
    write_text(results / "runs" / PRIVATE[2] / "config.yaml", "method: dp-agr\n")
    before = dpfedbench.load_runs(results)
    assert len(before) == 3  # the fourth is not finished
    assert before["folder"][0] == str(results / "runs" / PRIVATE[0])
    preset = results / "real"
    preset.mkdir()
    chosen = collect_runs(results, [PRIVATE[0], PUBLIC])
    write_runs(chosen, preset / "runs.parquet", preset / "runs.csv")
    after = dpfedbench.load_runs(preset)
    assert after["run"].to_list() == [PRIVATE[0], PUBLIC]
    assert after["folder"][1] == str(results / "runs" / PUBLIC)
    assert list(after["task_accuracies"][0]) == [40.0, 60.0]
    csv = pd.read_csv(preset / "runs.csv")
    assert csv["second_epsilon_proven_high"].to_list()[0] == math.inf


# The page docs/results-format.md


def test_results_format_page_is_that_of_the_columns(frame):
    page = read_page("results-format.md")
    assert page == make_page(), "run tools/generate_results_format.py"
    names = run_columns()
    assert list(frame.reset_index())[: len(names)] == names


def test_results_format_examples_run_as_printed(results, monkeypatch, capsys):
    frame = collect_runs(results, RUNS)
    write_runs(frame, results / "runs.parquet", results / "runs.csv")
    series = zip(("dp-agr", "dp-agr", "maml"), RUNS, strict=True)
    records = [full_record(item="table2", series=name, run=run) for name, run in series]
    records.append(full_record(item="figure4b", series="dp-agr", run=PRIVATE[0]))
    write_frame(collect_cells(results, records, frame), results / "cells.parquet")
    monkeypatch.chdir(results.parent)
    variables = {}
    for block in code_blocks("results-format.md", "python"):
        exec(block.text, variables)
    summary = variables["summary"].to_dict("list")
    assert summary == {"participation.cohort": [20], "mean": [50.0], "std": [0.0]}
    assert len(variables["both"]) == 6
    assert "dp-agr    50.0\nmaml      90.0" in capsys.readouterr().out
