"""The largest memory of a command's processes together."""

import sys

import pytest

from tools.peak_memory import MIB, run_and_sample

# A child that outlives its parent, in a session of its own, holds memory for a second.
# Its parent ends at once; the command waits.
CHILD = "import time; held = bytearray(b'x') * (80 << 20); time.sleep(1)"
PARENT = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {CHILD!r}], start_new_session=True)
"""
COMMAND = f"""
import subprocess, sys, time
subprocess.run([sys.executable, "-c", {PARENT!r}], check=True)
held = bytearray(b"x") * (80 << 20)
time.sleep(1)
sys.exit(3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_adds_up_processes_that_outlive_their_parents():
    """Twice 80 MiB, and two interpreters of about 10 MiB."""
    code, peak, count = run_and_sample([sys.executable, "-c", COMMAND], 0.1)
    assert code == 3
    assert 160 * MIB <= peak < 260 * MIB
    assert count >= 2
