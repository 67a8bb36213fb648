"""The format mark of a results folder: newer and damaged ones are refused."""

import json
from pathlib import Path

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.results.runs_table import collect_runs
from dpfedbench.results_format import FORMAT, NAME, check_format, mark_format


def test_results_format_of_this_version_and_none_are_accepted(tmp_path: Path) -> None:
    check_format(tmp_path / "absent")
    mark_format(tmp_path)
    check_format(tmp_path)
    assert json.loads((tmp_path / NAME).read_text(encoding="utf-8"))["format"] == FORMAT


def test_results_format_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(
        json.dumps({"format": "2.0", "written_by": "9.1"}), encoding="utf-8"
    )
    with pytest.raises(
        BenchError,
        match=(r"results of format 2\.0, written by dpfedbench 9\.1; this version"),
    ):
        check_format(tmp_path)


def test_results_format_with_additions_is_accepted(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"format": "1.3"}), encoding="utf-8")
    check_format(tmp_path)


def test_results_format_before_1_0_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"format": 4}), encoding="utf-8")
    with pytest.raises(
        BenchError,
        match=(r"results of format 4, .* move that folder aside"),
    ):
        check_format(tmp_path)
    assert (tmp_path / NAME).exists()


@pytest.mark.parametrize("text", ["[]", '{"format": "two"}', '{"format": null}', "{"])
def test_results_format_that_is_damaged_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text, encoding="utf-8")
    with pytest.raises(BenchError):
        check_format(tmp_path)


def test_run_of_a_newer_version_is_refused_with_its_folder(tmp_path: Path) -> None:
    run = tmp_path / "runs/maml/glyphs/5way-1shot/0123456789/seed0"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("method: maml\n", encoding="utf-8")
    for name, value in (
        ("metrics", {"accuracy": 1, "per_task": [1]}),
        ("privacy", {"profiles": {}}),
        ("training", {"format": "2.0"}),
    ):
        (run / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(BenchError, match=r"maml/.*/seed0 has results of format 2\.0"):
        collect_runs(tmp_path, ["maml/glyphs/5way-1shot/0123456789/seed0"])
