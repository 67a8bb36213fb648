"""Files that are whole or absent, and what a killed writer leaves."""

import os
import subprocess
import sys
from pathlib import Path

from dpfedbench.files import write_text

KILLED = """
import os, signal, sys
from dpfedbench.files import atomic_path
with atomic_path(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert ".part" in left.name and not path.exists()
    foreign = [
        tmp_path / ".b.json.part.json",
        tmp_path / left.name.replace("a.json", "aa.json", 1),
        # A writer that is alive (this process), and one of another machine, of which nothing is known here.
        tmp_path / left.name.replace(left.name.split(".")[-3], str(os.getpid())),
        tmp_path / f".a.json.elsewhere.{left.name.split('.')[-3]}.part.json",
    ]
    for other in foreign:
        other.write_text("another's", encoding="utf-8")
    write_text(path, "whole")
    assert path.read_text(encoding="utf-8") == "whole" and not left.exists()
    assert sorted(tmp_path.iterdir()) == sorted(
        [path, *(other for other in foreign if str(os.getpid()) not in other.name)]
    )
