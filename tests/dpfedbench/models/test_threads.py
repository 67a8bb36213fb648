"""The threads of a training."""

import os
import subprocess
import sys

import pytest
import torch

# In each of two threads, which wait for one another: how many threads OpenMP, and MKL
# where torch brings it, would take for a product that is called in it. The hand-written
# passes call MKL's without torch.
ASKED = """
import ctypes, os, threading, torch
from dpfedbench.models.threads import Threads

library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
both = threading.Barrier(2)

def wanted():
    both.wait(60)
    names = ("omp_get_max_threads", "MKL_Get_Max_Threads")
    return [getattr(library, name)() for name in names if hasattr(library, name)]

threads = Threads(2, list)
with threads.running() as pool:
    asked = [pool.submit(wanted) for _ in range(2)]
    print([one.result() for one in asked], torch.get_num_threads())
print(torch.get_num_threads())
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="the library's file has this name on Linux"
)
def test_a_threads_products_take_no_threads_of_their_own() -> None:
    """torch keeps its number by thread: 1, said to the caller's, left two threads of a
    job with four at work.
    """
    environment = os.environ | dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "2"
    )
    command = [sys.executable, "-c", ASKED]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    within, after = done.stdout.splitlines()
    found = len(within.split("]")[0].split(","))
    assert within == f"[{[1] * found}, {[1] * found}] 1" and int(after) == 2
    assert found == 1 + torch.backends.mkl.is_available()
