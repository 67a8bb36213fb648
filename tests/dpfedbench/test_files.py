"""Files that are whole or absent, and what a killed writer leaves."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, write_text

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
    assert ".part" in left.name
    assert not path.exists()
    foreign = [
        tmp_path / ".b.json.part.json",
        tmp_path / left.name.replace("a.json", "aa.json", 1),
        # A writer that is alive (this process), and one of another machine, of which
        # nothing is known here.
        tmp_path / left.name.replace(left.name.split(".")[-3], str(os.getpid())),
        tmp_path / f".a.json.elsewhere.{left.name.split('.')[-3]}.part.json",
    ]
    for other in foreign:
        other.write_text("another's", encoding="utf-8")
    write_text(path, "whole")
    assert path.read_text(encoding="utf-8") == "whole"
    assert not left.exists()
    assert sorted(tmp_path.iterdir()) == sorted(
        [path, *(other for other in foreign if str(os.getpid()) not in other.name)]
    )


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    done = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
    )
    if not done or done.returncode:
        pytest.skip("a small disk can be made by root only")
    yield folder
    subprocess.run(
        ["umount", "--lazy", str(folder)], check=True
    )  # torch may still hold the file


NUMBERS = np.zeros(1_000_000, np.float32)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: torch.save({"a": torch.from_numpy(NUMBERS)}, path),
        lambda path: save_file({"a": NUMBERS}, path),
        lambda path: path.write_bytes(NUMBERS.tobytes()),
    ],
    ids=["torch", "safetensors", "bytes"],
)
def test_a_full_disk_is_one_line_that_names_the_file(
    full: Path, write: Callable[[Path], None]
) -> None:
    """torch says "unexpected pos", numpy "262112 written", a copy names its source."""
    path = full / "runs" / "model.bin"
    with pytest.raises(BenchError) as caught, atomic_path(path) as temporary:
        write(temporary)
    assert (
        str(caught.value)
        == f"no room to write {path}: free some space and run the same command again"
    )
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_every_file_has_the_mode_that_new_files_have(tmp_path: Path, mask: int) -> None:
    """Whatever wrote it: safetensors makes files that nobody else can read, and so does
    tempfile.
    """
    code = (
        "import os, sys\n"
        f"os.umask({mask})\n"
        "import numpy as np\n"
        "from safetensors.numpy import save_file\n"
        "from dpfedbench.files import atomic_path, write_text\n"
        "with atomic_path('model.safetensors') as temporary:\n"
        "    save_file({'a': np.zeros(3, np.float32)}, temporary)\n"
        "write_text('a.txt', 'a')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "model.safetensors": 0o666 & ~mask,
        "a.txt": 0o666 & ~mask,
    }
