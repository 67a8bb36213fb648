"""Loops that are read from numba's cache on disk are those of the present source."""

import os
import subprocess
import sys

import pytest

from dpkernels.compiled import exact

PART = """
from dpkernels.compiled import part

@part
def add(x):
    return x + {}
"""
CALLER = """
from dpkernels.compiled import compiled
from parts import add

@compiled
def loop(x):
    return add(x)

print(loop(1.0), sum(loop.stats.cache_hits.values()))
"""


def run(folder):
    """Run caller.py with a cache of its own; return the words that it prints."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "caller.py"]
    return subprocess.check_output(
        command, cwd=folder, env=environment, text=True
    ).split()


def test_compiled_loop_follows_a_part_in_another_file(tmp_path):
    """A copy or checkout changes the file's time only, and compiles nothing."""
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "parts.py").write_text(PART.format(1))
    assert run(tmp_path) == ["2.0", "0"]
    assert run(tmp_path) == ["2.0", "1"]
    os.utime(tmp_path / "parts.py", (1, 1))
    assert run(tmp_path) == ["2.0", "1"]
    (tmp_path / "parts.py").write_text(PART.format(20))
    assert run(tmp_path) == ["21.0", "0"]


def test_exact_refuses_a_loop_inside_a_function_without_a_name_of_its_own():
    """numba's cache would mix up two loops of one name."""

    def double(x):
        return 2 * x

    with pytest.raises(TypeError, match="double: several loops may have this name"):
        exact(double)
    double.__qualname__ = "double_of_this_test"
    assert exact(double).py_func is double
