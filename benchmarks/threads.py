"""Clients per second of one training's gradients by one thread and by two, and beside an older checkout.

    uv run python benchmarks/threads.py [--pairs 5] [--tasks 200] [--filters 16 32 64] [--steps 2]
        [--before ../checkout-of-another-commit] [--out results/benchmarks/threads.csv]

Second-order meta-gradients of 5-way 1-shot tasks, clipped and summed with noise as a round does it. One and two threads
take turns in one process; the checkouts take turns, a process each, and the ratios are taken pair by pair. So that
others' work on the machine is seen, the seconds of processor time are given beside those of the clock.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent


def once(benchmarks: str, folder: str, filters: int, steps: int, tasks: int, threads: list[int]) -> None:
    """Print the milliseconds of a task by the clock, and of the processor, for each number of threads.

    How a training is called is what the benchmark of the same checkout says.
    """
    sys.path.insert(0, benchmarks)
    from meta_gradient import Ours, Tasks, dataset

    data = dataset(Path(folder))
    cohort = Tasks(data, tasks)
    for count in threads:
        ours = Ours(data, filters, steps, 2, count, True)
        ours(Tasks(data, 16))  # loops are read
        clock, processor = time.perf_counter(), time.process_time()
        ours(cohort)
        spent = time.perf_counter() - clock, time.process_time() - processor
        print(count, *(1e3 * seconds / tasks for seconds in spent))


def measured(checkout: Path, folder: str, *numbers: int) -> dict[int, tuple[float, float]]:
    """What `once` prints in a process that reads the code of one checkout."""
    command = [sys.executable, __file__, "--once", str(checkout / "benchmarks"), folder, *map(str, numbers)]
    # As Snakemake has them in a job of two threads: products that heed them take threads of their own.
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in said.splitlines()]
    return {int(count): (float(clock), float(processor)) for count, clock, processor in rows}


def main() -> None:
    """Time all cases in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--filters", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--before", type=Path, help="a checkout of another commit")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/threads.csv"))
    parser.add_argument("--once", nargs=5, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.once:
        once(*asked.once[:2], *map(int, asked.once[2:]), threads=[1, 2])
        return
    checkouts = {"now": HERE} | ({"before": asked.before.resolve()} if asked.before else {})
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        for filters in asked.filters:
            found: dict[tuple[str, int], list[tuple[float, float]]] = {}
            for _, (name, checkout) in itertools.product(range(asked.pairs), checkouts.items()):
                for count, spent in measured(checkout, folder, filters, asked.steps, asked.tasks).items():
                    found.setdefault((name, count), []).append(spent)
            for (name, count), spent in found.items():
                row = {"checkout": name, "filters": filters, "inner_steps": asked.steps, "threads": count}
                row |= {
                    f"{what}_ms_per_task": round(statistics.median(column), 2)
                    for what, column in zip(("clock", "processor"), zip(*spent, strict=True), strict=True)
                }
                for than, other in (("one_thread", (name, 1)), ("before", ("before", count))):
                    if other in found:
                        ratios = [b[0] / a[0] for a, b in zip(spent, found[other], strict=True)]
                        row[f"times_as_fast_as_{than}"] = round(statistics.median(ratios), 2)
                rows.append(row)
                print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with open(asked.out, "w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(dict.fromkeys(itertools.chain(*rows))), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"written to {asked.out}")


if __name__ == "__main__":
    main()
