"""Compiled loops that are read from numba's cache on disk are those of the present source."""

import os
import subprocess
import sys

CALLER = """
from dpfedbench.compiled import compiled
from parts import add

@compiled
def loop(x):
    return add(x)

print(loop(1.0), sum(loop.stats.cache_hits.values()))
"""


def run(folder):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    called = [sys.executable, "caller.py"]
    return subprocess.run(
        called, cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


def test_a_part_that_changes_in_another_file_is_compiled_anew(tmp_path):
    part = "from dpfedbench.compiled import part\n\n@part\ndef add(x):\n    return x + {}\n"
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "parts.py").write_text(part.format(1))
    assert [run(tmp_path), run(tmp_path)] == [["2.0", "0"], ["2.0", "1"]]
    (tmp_path / "parts.py").write_text(part.format(20))
    assert run(tmp_path) == ["21.0", "0"]


def test_loops_are_loaded_before_they_are_called(tmp_path):
    """What the warm process does, so that no fork of it has to."""
    loads = "from dpfedbench.compiled import load_all\nload_all()\nprint(len(loop.overloads))\nprint"
    (tmp_path / "caller.py").write_text(CALLER.replace("print", loads))
    (tmp_path / "parts.py").write_text("from dpfedbench.compiled import part\n\n@part\ndef add(x):\n    return x + 1\n")
    assert [run(tmp_path), run(tmp_path)] == [["0", "2.0", "0"], ["1", "2.0", "1"]]
