"""Compiled loops that are read from numba's cache on disk are those of the present
source.
"""

import fcntl
import os
import subprocess
import sys
import time

import pytest

from dpkernels.compiled import exact

CALLER = """
from dpkernels.compiled import compiled
from parts import add

@compiled
def loop(x):
    return add(x)

print(loop(1.0), sum(loop.stats.cache_hits.values()))
"""


def start(folder):
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    called = [sys.executable, "caller.py"]
    return subprocess.Popen(
        called, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )


def run(folder):
    process = start(folder)
    said = process.communicate()[0].split()
    assert process.returncode == 0
    return said


def test_a_part_that_changes_in_another_file_is_compiled_anew(tmp_path):
    part = (
        "from dpkernels.compiled import part\n\n@part\ndef add(x):\n    return x + {}\n"
    )
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "parts.py").write_text(part.format(1))
    assert [run(tmp_path), run(tmp_path)] == [["2.0", "0"], ["2.0", "1"]]
    os.utime(tmp_path / "parts.py", (1, 1))  # as a copy or a checkout has another time
    assert run(tmp_path) == ["2.0", "1"]
    (tmp_path / "parts.py").write_text(part.format(20))
    assert run(tmp_path) == ["21.0", "0"]


def test_loops_are_loaded_before_they_are_called(tmp_path):
    """What the warm process does, so that no fork of it has to."""
    loads = (
        "from dpkernels.compiled import"
        " load_all\nload_all()\nprint(len(loop.overloads))\nprint"
    )
    (tmp_path / "caller.py").write_text(CALLER.replace("print", loads))
    (tmp_path / "parts.py").write_text(
        "from dpkernels.compiled import part\n\n@part\ndef add(x):\n    return x + 1\n"
    )
    assert [run(tmp_path), run(tmp_path)] == [["0", "2.0", "0"], ["1", "2.0", "1"]]


TOGETHER = """
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


def test_of_several_processes_one_compiles_a_loop_and_the_others_go_on_with_the_next(
    tmp_path,
):
    (tmp_path / "caller.py").write_text(TOGETHER)
    (tmp_path / "parts.py").write_text(
        "from dpkernels.compiled import part\n\n@part\ndef add(x):\n    return x + 1\n"
    )
    assert run(tmp_path) == ["2.0", "3.0", "1", "1"]
    assert run(tmp_path) == ["2.0", "3.0", "0", "0"]
    (lock,) = (tmp_path / "cache").glob("*/caller.one-*.lock")
    one, (two,) = lock.with_suffix(""), (tmp_path / "cache").glob("*/caller.two-*.nbi")
    kept = [file.read_bytes() for file in (one, *lock.parent.glob("caller.one-*.nbc"))]
    (tmp_path / "parts.py").write_text(
        "from dpkernels.compiled import part\n\n@part\ndef add(x):\n    return x + 5\n"
    )
    before = two.stat().st_mtime_ns
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = start(tmp_path)
        while two.stat().st_mtime_ns == before and waiting.poll() is None:
            time.sleep(0.01)
        assert waiting.poll() is None
        assert [
            file.read_bytes() for file in (one, *lock.parent.glob("caller.one-*.nbc"))
        ] == kept
    assert (
        waiting.communicate()[0].split() == ["6.0", "11.0", "1", "1"]
        and waiting.returncode == 0
    )


def test_a_loop_that_another_function_makes_needs_a_name_of_its_own() -> None:
    """Two of one name were mixed up where each was read from numba's cache as another
    process had compiled it.
    """

    def double(x):
        return 2 * x

    with pytest.raises(TypeError, match="double: several loops may have this name"):
        exact(double)
    double.__qualname__ = "double_of_this_test"
    assert exact(double).py_func is double
