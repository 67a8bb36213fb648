"""Files are whole or absent, also after a writer was killed, and of a known format."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfedbench.files import read_csv, read_json, write_json, write_table, write_text
from dpfedbench.results_format import FORMAT, NAME, check_format, mark_format
from tests.dpfedbench.data.conftest import refusal

KILLED = """
import os, signal, sys
from dpfedbench.files import atomic_path
with atomic_path(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_writer_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    """Files of this process and of others stay: whether a process of another machine
    is alive is unknown here.
    """
    path = tmp_path / "a.json"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (partial,) = tmp_path.iterdir()
    assert ".part" in partial.name
    process = partial.name.split(".")[-3]
    # This process writes to a file of this name, and renames it.
    of_this_process = tmp_path / partial.name.replace(process, str(os.getpid()))
    foreign = [
        tmp_path / ".b.json.part.json",
        tmp_path / partial.name.replace("a.json", "aa.json", 1),
        tmp_path / f".a.json.elsewhere.{process}.part.json",
    ]
    for file in (of_this_process, *foreign):
        file.write_text("another writer's", encoding="utf-8")
    write_text(path, "whole")
    assert path.read_text(encoding="utf-8") == "whole"
    assert sorted(tmp_path.iterdir()) == sorted([path, *foreign])


WRITE = """
import os
os.umask(0o027)
from pathlib import Path
from dpfedbench.files import atomic_path, write_text
with atomic_path("model.safetensors") as temporary:
    Path(temporary).touch(0o600)
write_text("a.txt", "a")
"""


def test_written_files_have_the_mode_of_new_files(tmp_path: Path) -> None:
    """safetensors and tempfile make files that only their owner can read."""
    subprocess.run([sys.executable, "-c", WRITE], cwd=tmp_path, check=True)
    modes = [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()]
    assert modes == [0o640, 0o640]


def test_results_format_is_this_versions_or_none(tmp_path: Path) -> None:
    check_format(tmp_path / "absent")
    mark_format(tmp_path)
    assert read_json(tmp_path / NAME)["format"] == FORMAT
    for accepted in (FORMAT, "1.3"):
        write_json(tmp_path / NAME, {"format": accepted})
        check_format(tmp_path)
    write_json(tmp_path / NAME, {"format": "2.0", "written_by": "9.1"})
    message = refusal(check_format, tmp_path)
    assert "results of format 2.0, written by dpfedbench 9.1" in message
    for damaged in ({"format": None}, []):
        write_json(tmp_path / NAME, damaged)
        refusal(check_format, tmp_path)


TEXTS = ["None", "NA", "null", "nan", "", "007", "True", "inf", "1e3", 'a, "b"']
"""Texts that pandas' own reader takes for nothing, or for a number."""


def test_csv_keeps_its_texts(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_table(path, [("label", "value"), *((text, 1.5) for text in TEXTS)])
    table = read_csv(path, ["label", "value"], numbers=["value"])
    assert table["label"].tolist() == TEXTS
    assert table["value"].tolist() == [1.5] * len(TEXTS)


def test_csv_numbers_may_be_missing_or_infinite(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("\ufeffa,b\r\n,inf\r\n2\r\n", encoding="utf-8")
    table = read_csv(path, ["a", "b"], numbers=["a", "b"])
    assert table.fillna(-1).to_numpy().tolist() == [[-1, float("inf")], [2, -1]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 columns label, not one"),
        (b"label;value\nx;1\n", "has 0 columns label, not one"),
        (b"label,value,label\nx,1,y\n", "has 2 columns label, not one"),
        (b"label,value\nx,1,2\n", "the row x,1,2 has 3 values"),
        (b"label,value\nx,1;5\n", "column value: Unable to parse string '1;5'"),
        (b'label,value\n"x,1\n', "line 2 is not CSV"),
        ("label,value\né,1\n".encode("latin-1"), "is not UTF-8 text"),
    ],
    ids=[
        "empty",
        "semicolons",
        "column twice",
        "long row",
        "text",
        "open quote",
        "Latin-1",
    ],
)
def test_csv_that_cannot_be_read_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    options = {"numbers": ["value"], "remedy": "correct the file"}
    text = refusal(read_csv, path, ["label", "value"], **options)
    assert text.startswith(str(path))
    assert message in text
    assert text.endswith(": correct the file")
