"""The threads of a training."""

import os
import subprocess
import sys

import pytest
import torch

# Number of threads that OpenMP, and MKL where torch brings it, would take for a product
# in each of two threads, which wait for one another. Compiled passes call MKL's.
CODE = """
import ctypes, os, threading, torch
from dpfedbench.models.threads import Threads

library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
barrier = threading.Barrier(2)

def thread_counts():
    barrier.wait(60)
    names = ("omp_get_max_threads", "MKL_Get_Max_Threads")
    return [getattr(library, name)() for name in names if hasattr(library, name)]

threads = Threads(2, list)
with threads.running() as pool:
    tasks = [pool.submit(thread_counts) for _ in range(2)]
    print([task.result() for task in tasks], torch.get_num_threads())
print(torch.get_num_threads())
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="the library's file has this name on Linux"
)
def test_threads_products_take_no_threads_of_their_own() -> None:
    """torch has a number of threads for each thread."""
    two = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    process = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | two,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    within, after = process.stdout.splitlines()
    counts = [1] * (1 + torch.backends.mkl.is_available())
    assert within == f"[{counts}, {counts}] 1"
    assert int(after) == 2
