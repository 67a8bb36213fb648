"""Peak memory of a command with all its processes, such as a run of the workflow, by
kind of process.

    uv run python benchmarks/memory.py [--every 0.1] -- snakemake --cores 2 --configfile config/presets/smoke.yaml

Memory is the proportional set size of `/proc/PID/smaps_rollup` (Linux): what several
processes share counts once, each having its part of it. A process belongs to the
command if its environment has the mark that the command was given. Kinds are Snakemake,
the warm process, and jobs by the script that they run. Printed are the peak of all
processes together with what it consisted of, and for each kind the most processes at
once, the most memory of one, and its own memory at most, which it shares with none.
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


def kind_of(process: Path) -> str:
    """What a process does, by its command line; a fork of the warm process has the
    script's name.
    """
    words = (process / "cmdline").read_text(errors="replace").split("\0")
    name = (process / "comm").read_text().strip()
    scripts = [
        found.group(1)
        for word in words
        if (found := re.search(r"/tmp\w*\.(\w+\.py)$", word))
    ]
    if "workflow_jobs.warm" in " ".join(words):
        return name if name.endswith(".py") else "warm process"
    return (
        scripts[0]
        if scripts
        else Path(words[0]).name
        if "snakemake" not in " ".join(words)
        else "snakemake"
    )


def sampled(mark: str) -> dict[int, tuple[str, float, float]]:
    """Kind, proportional and own MiB of each process with the mark."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() not in (process / "environ").read_bytes():
                continue
            said = dict(
                re.findall(r"(\w+):\s+(\d+) kB", (process / "smaps_rollup").read_text())
            )
            own = int(said["Private_Clean"]) + int(said["Private_Dirty"])
            found[int(process.name)] = (
                kind_of(process),
                int(said["Pss"]) / 1024,
                own / 1024,
            )
        except (OSError, KeyError):  # it has ended
            continue
    return found


def main() -> None:
    """Run the command, look at its processes, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--every", type=float, default=0.1, help="seconds between two looks"
    )
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    mark = f"{MARK}={uuid.uuid4()}"
    running = subprocess.Popen(asked.command, env=os.environ | dict([mark.split("=")]))
    kinds: dict[str, list[float]] = {}
    peak = 0.0
    of = dict[str, list[float]]()
    while running.poll() is None:
        seen: dict[str, list[tuple[float, float]]] = {}
        for kind, shared, own in sampled(mark).values():
            seen.setdefault(kind, []).append((shared, own))
        for kind, rows in seen.items():
            now = [len(rows), *map(max, zip(*rows, strict=True))]
            kinds[kind] = list(map(max, kinds.get(kind, now), now))
        together = sum(shared for rows in seen.values() for shared, _ in rows)
        if together > peak:
            peak = together
            of = {kind: [shared for shared, _ in rows] for kind, rows in seen.items()}
        time.sleep(asked.every)
    parts = ", ".join(
        f"{kind} {' + '.join(f'{each:.0f}' for each in rows)}"
        for kind, rows in sorted(of.items())
    )
    print(f"peak {peak:.0f} MiB: {parts}")
    for kind, (count, shared, own) in sorted(kinds.items()):
        print(
            f"{kind}: {count:.0f} at once, at most {shared:.0f} MiB each, {own:.0f} of"
            " it its own"
        )
    raise SystemExit(running.returncode)


if __name__ == "__main__":
    main()
