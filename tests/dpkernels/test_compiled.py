"""Loops that are read from numba's cache on disk are those of the present source."""

import fcntl
import os
import subprocess
import sys
import time

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
LOADING_CALLER = CALLER.replace(
    "print",
    "from dpkernels.compiled import load_all\nload_all()\n"
    "print(len(loop.overloads))\nprint",
)
TWO_LOOPS = """
from dpkernels.compiled import compiled, together
from numba import types
from parts import add

@compiled
def one(x):
    return add(x)

@compiled
def two(x):
    return add(add(x))

together((loop, (types.float64,)) for loop in (one, two))
print(one(1.0), two(1.0), *(sum(loop.stats.cache_misses.values()) for loop in (one, two)))
"""


def start(folder):
    """Start caller.py with a cache of its own."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "caller.py"]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )


def run(folder):
    """Run caller.py to its end; return the words that it prints."""
    process = start(folder)
    words = process.communicate()[0].split()
    assert process.returncode == 0
    return words


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


def test_load_all_loads_loops_before_they_are_called(tmp_path):
    """The warm process loads them, so that none of its forks has to."""
    (tmp_path / "caller.py").write_text(LOADING_CALLER)
    (tmp_path / "parts.py").write_text(PART.format(1))
    assert run(tmp_path) == ["0", "2.0", "0"]
    assert run(tmp_path) == ["1", "2.0", "1"]


def test_together_compiles_the_next_loop_while_another_process_compiles_the_first(
    tmp_path,
):
    (tmp_path / "caller.py").write_text(TWO_LOOPS)
    (tmp_path / "parts.py").write_text(PART.format(1))
    assert run(tmp_path) == ["2.0", "3.0", "1", "1"]
    assert run(tmp_path) == ["2.0", "3.0", "0", "0"]
    (lock,) = (tmp_path / "cache").glob("*/caller.one-*.lock")
    (second_index,) = lock.parent.glob("caller.two-*.nbi")
    first_files = [lock.with_suffix(""), *lock.parent.glob("caller.one-*.nbc")]
    contents = [file.read_bytes() for file in first_files]
    (tmp_path / "parts.py").write_text(PART.format(5))
    before = second_index.stat().st_mtime_ns
    with open(lock) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        waiting = start(tmp_path)
        while second_index.stat().st_mtime_ns == before and waiting.poll() is None:
            time.sleep(0.01)
        assert waiting.poll() is None
        assert [file.read_bytes() for file in first_files] == contents
    assert waiting.communicate()[0].split() == ["6.0", "11.0", "1", "1"]
    assert waiting.returncode == 0


def test_exact_refuses_a_loop_inside_a_function_without_a_name_of_its_own():
    """numba's cache would mix up two loops of one name."""

    def double(x):
        return 2 * x

    with pytest.raises(TypeError, match="double: several loops may have this name"):
        exact(double)
    double.__qualname__ = "double_of_this_test"
    assert exact(double).py_func is double
