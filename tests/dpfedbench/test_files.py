"""Files are whole or absent, also after a writer was killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfedbench.files import write_text

KILLED = """
import os, signal, sys
from dpfedbench.files import atomic_path
with atomic_path(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_writer_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (partial,) = tmp_path.iterdir()
    assert ".part" in partial.name
    assert not path.exists()
    process = partial.name.split(".")[-3]
    # This process writes to a file of this name, and renames it. Whether a process of
    # another machine is alive is unknown here.
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
import sys
os.umask(int(sys.argv[1]))
import numpy as np
from safetensors.numpy import save_file
from dpfedbench.files import atomic_path, write_text
with atomic_path("model.safetensors") as temporary:
    save_file({"a": np.zeros(3, np.float32)}, temporary)
write_text("a.txt", "a")
"""


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_written_files_have_the_mode_of_new_files(tmp_path: Path, mask: int) -> None:
    """safetensors and tempfile make files that only their owner can read."""
    command = [sys.executable, "-c", WRITE, str(mask)]
    subprocess.run(command, cwd=tmp_path, check=True)
    modes = [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()]
    assert modes == [0o666 & ~mask] * 2
