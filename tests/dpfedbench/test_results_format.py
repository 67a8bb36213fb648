"""The format mark of a results folder: results of another format are refused."""

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json, write_json, write_text
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
        ('{"format": null}', None),
        ("[]", None),
    ],
)
def test_results_format_that_is_another_or_damaged_is_refused(tmp_path, text, message):
    write_text(tmp_path / NAME, text)
    with pytest.raises(BenchError, match=message):
        check_format(tmp_path)
    assert (tmp_path / NAME).exists()
