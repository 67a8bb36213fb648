"""The format mark of a results folder: results of another format are refused."""

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json, write_json, write_text
from dpfedbench.results.runs_table import collect_runs
from dpfedbench.results_format import FORMAT, NAME, check_format, mark_format


def test_results_format_of_this_version_and_none_are_accepted(tmp_path):
    check_format(tmp_path / "absent")
    mark_format(tmp_path)
    check_format(tmp_path)
    assert read_json(tmp_path / NAME)["format"] == FORMAT
    write_json(tmp_path / NAME, {"format": "1.3"})
    check_format(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"format": "2.0", "written_by": "9.1"}',
            r"results of format 2\.0, written by dpfedbench 9\.1",
        ),
        ('{"format": 4}', "results of format 4, .* move that folder aside"),
        ('{"format": null}', None),
        ("[]", None),
    ],
)
def test_results_format_that_is_another_or_damaged_is_refused(tmp_path, text, message):
    write_text(tmp_path / NAME, text)
    with pytest.raises(BenchError, match=message):
        check_format(tmp_path)
    assert (tmp_path / NAME).exists()


def test_run_of_a_newer_version_is_refused_with_its_folder(tmp_path):
    name = "maml/glyphs/5way-1shot/0123456789/seed0"
    run = tmp_path / "runs" / name
    write_text(run / "config.yaml", "method: maml\n")
    write_json(run / "metrics.json", {"accuracy": 1, "per_task": [1]})
    write_json(run / "privacy.json", {"profiles": {}})
    write_json(run / "training.json", {"format": "2.0"})
    with pytest.raises(BenchError, match=rf"{name} has results of format 2\.0"):
        collect_runs(tmp_path, [name])
