"""Measure the peak memory of a command with all its processes, by kind of process.

    uv run python benchmarks/memory.py [--every 0.1] -- snakemake --cores 2 --configfile config/presets/smoke.yaml

Memory is the proportional set size of `/proc/PID/smaps_rollup` (Linux), which divides
shared memory among the processes that share it. The command gets a mark in its
environment, by which the benchmark finds its processes. The kinds of processes are
Snakemake, the warm process, and jobs, named by the script that they run. The benchmark
prints the peak of all processes together and its composition. For each kind it prints
the largest number of processes at one time, the largest memory of a process, and the
largest private memory, which a process shares with no other.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import time
import uuid
from pathlib import Path

MARK = "DPFEDBENCH_MEMORY_OF"


def read_kind(process: Path) -> str:
    """Return the kind of a process, from its command line.

    A fork of the warm process has the name of the script that it runs.

    Args:
        process: the folder of the process in `/proc`.
    """
    words = (process / "cmdline").read_text(errors="replace").split("\0")
    name = (process / "comm").read_text().strip()
    command = " ".join(words)
    if "workflow_jobs.warm" in command:
        return name if name.endswith(".py") else "warm process"
    for word in words:
        script = re.search(r"/tmp\w*\.(\w+\.py)$", word)
        if script:
            return script.group(1)
    return "snakemake" if "snakemake" in command else Path(words[0]).name


def sample_memory(mark: str) -> dict[int, tuple[str, float, float]]:
    """Return the memory of all processes that have the mark, by process number.

    Returns:
        Kind, proportional MiB and private MiB of each process.
    """
    memory = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() not in (process / "environ").read_bytes():
                continue
            text = (process / "smaps_rollup").read_text()
            sizes = dict(re.findall(r"(\w+):\s+(\d+) kB", text))
            private = int(sizes["Private_Clean"]) + int(sizes["Private_Dirty"])
            memory[int(process.name)] = (
                read_kind(process),
                int(sizes["Pss"]) / 1024,
                private / 1024,
            )
        except (OSError, KeyError):  # the process has ended
            continue
    return memory


def main() -> None:
    """Run the command, sample the memory of its processes, and print the peaks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--every", type=float, default=0.1, help="seconds between two samples"
    )
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    mark = f"{MARK}={uuid.uuid4()}"
    running = subprocess.Popen(
        options.command, env=os.environ | dict([mark.split("=")])
    )
    maxima: dict[str, list[float]] = {}
    peak = 0.0
    composition: dict[str, list[float]] = {}
    while running.poll() is None:
        samples: dict[str, list[tuple[float, float]]] = {}
        for kind, proportional, private in sample_memory(mark).values():
            samples.setdefault(kind, []).append((proportional, private))
        for kind, rows in samples.items():
            largest = [len(rows), *map(max, zip(*rows, strict=True))]
            maxima[kind] = list(map(max, maxima.get(kind, largest), largest))
        proportional_by_kind = {
            kind: [proportional for proportional, _ in rows]
            for kind, rows in samples.items()
        }
        total = sum(map(sum, proportional_by_kind.values()))
        if total > peak:
            peak = total
            composition = proportional_by_kind
        time.sleep(options.every)
    parts = ", ".join(
        f"{kind} {' + '.join(f'{size:.0f}' for size in sizes)}"
        for kind, sizes in sorted(composition.items())
    )
    print(f"peak {peak:.0f} MiB: {parts}")
    for kind, (count, proportional, private) in sorted(maxima.items()):
        print(
            f"{kind}: {count:.0f} at once, at most {proportional:.0f} MiB each,"
            f" {private:.0f} MiB of it private"
        )
    raise SystemExit(running.returncode)


if __name__ == "__main__":
    main()
