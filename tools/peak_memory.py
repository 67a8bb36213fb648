"""Run a command, and print the largest memory of its processes together.

uv run python tools/peak_memory.py [--seconds S] -- COMMAND ...

The processes are those whose environment has a mark that the command inherits: also
those that outlive their parents, as the workflow's warm process does. Each sample adds
up their proportional set sizes (PSS), in which a page that several processes share
counts once. A peak between two samples is missed. Linux only.
"""

import argparse
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK = "DPFEDBENCH_PEAK_MEMORY"
MIB = 1024
"""KiB, the unit of the kernel's files."""


def marked_processes(mark: str) -> list[Path]:
    """Return the folders in /proc of the processes whose environment has the mark."""
    line = f"{MARK}={mark}".encode()
    folders = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if line in (folder / "environ").read_bytes().split(b"\0"):
                folders.append(folder)
        except OSError:
            continue
    return folders


def proportional_set_size(folder: Path) -> int:
    """Return the PSS of a process in KiB; 0 if it has ended."""
    try:
        text = (folder / "smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def run_and_sample(command: list[str], seconds: float) -> tuple[int, int, int]:
    """Run a command to its end.

    Args:
        command: the program and its arguments.
        seconds: time between two samples.

    Returns:
        Exit code, largest sum of PSS in KiB, and the number of processes at that time.
    """
    mark = uuid.uuid4().hex
    process = subprocess.Popen(command, env=os.environ | {MARK: mark})
    peak = (0, 0)
    while process.poll() is None:
        folders = marked_processes(mark)
        total = sum(map(proportional_set_size, folders))
        peak = max(peak, (total, len(folders)))
        time.sleep(seconds)
    return process.returncode, *peak


def main() -> int:
    """Run the command of the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    code, peak, count = run_and_sample(arguments.command, arguments.seconds)
    print(f"peak {peak / MIB:.0f} MiB in {count} processes", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
