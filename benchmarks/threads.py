"""Milliseconds a client of one training's gradients by one thread and by two, and
beside an older checkout.

    uv run python benchmarks/threads.py [--pairs 5] [--tasks 200] [--filters 16 32 64] [--steps 2]
        [--before ../checkout-of-another-commit] [--out results/benchmarks/threads.csv]

Second-order meta-gradients of 5-way 1-shot tasks, clipped and summed with noise as a
round does it. One and two threads take turns in one process; the checkouts take turns,
a process each, and the ratios are taken pair by pair. So that others' work on the
machine is seen, the seconds of processor time are given beside those of the clock. Two
processes of one thread each, side by side, share nothing: what they lose is the
machine's, not the threads'.
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


def once(
    benchmarks: str,
    folder: str,
    filters: int,
    steps: int,
    tasks: int,
    threads: list[int],
) -> None:
    """Print the milliseconds of a task by the clock, and of the processor, for each
    number of threads.

    How a training is called is what the benchmark of the same checkout says. It waits
    for a line once it is ready.
    """
    sys.path.insert(0, benchmarks)
    from meta_gradient import Ours, Tasks, dataset

    data = dataset(Path(folder))
    cohort = Tasks(data, tasks)
    for count in threads:
        ours = Ours(data, filters, steps, 2, count, True)
        ours(Tasks(data, 16))  # loops are read
        print("ready", flush=True)
        input()
        clock = time.perf_counter()
        processor = time.process_time()
        ours(cohort)
        spent = time.perf_counter() - clock, time.process_time() - processor
        print(*(1e3 * seconds / tasks for seconds in spent), flush=True)


def measured(
    checkout: Path,
    folder: str,
    numbers: tuple[int, ...],
    threads: list[int],
    processes: int = 1,
) -> list[tuple[float, ...]]:
    """What `once` prints in a process that reads the code of one checkout, or in the
    first of several side by side.
    """
    command = [
        sys.executable,
        __file__,
        "--once",
        str(checkout / "benchmarks"),
        folder,
        *map(str, numbers),
    ]
    command += ["--threads", *map(str, threads)]
    # As Snakemake has them in a job of two threads: products that heed them take
    # threads of their own.
    environment = os.environ | {
        "PYTHONPATH": str(checkout / "src"),
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
    }
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        for _ in range(processes)
    ]
    found = []
    for _ in threads:
        for process in started:
            assert (
                process.stdout is not None and process.stdout.readline() == "ready\n"
            ), "a process ended"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        lines = [
            process.stdout.readline()
            for process in started
            if process.stdout is not None
        ]
        found.append(tuple(map(float, lines[0].split())))
    for process in started:
        process.communicate()
    return found


def main() -> None:
    """Time all cases in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--filters", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--before", type=Path, help="a checkout of another commit")
    parser.add_argument(
        "--out", type=Path, default=Path("results/benchmarks/threads.csv")
    )
    parser.add_argument("--once", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.once:
        once(*asked.once[:2], *map(int, asked.once[2:]), threads=asked.threads)
        return
    checkouts = {"now": HERE} | (
        {"before": asked.before.resolve()} if asked.before else {}
    )
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        for filters in asked.filters:
            found: dict[tuple[str, int, int], list[tuple[float, ...]]] = {}
            numbers = filters, asked.steps, asked.tasks
            for _, (name, checkout) in itertools.product(
                range(asked.pairs), checkouts.items()
            ):
                one, two = measured(checkout, folder, numbers, [1, 2])
                (beside,) = measured(checkout, folder, numbers, [1], processes=2)
                for key, spent in (
                    ((name, 1, 1), one),
                    ((name, 1, 2), two),
                    ((name, 2, 1), beside),
                ):
                    found.setdefault(key, []).append((spent[0] / key[1], spent[1]))
            for (name, processes, count), spent in found.items():
                row = {"checkout": name, "filters": filters, "inner_steps": asked.steps}
                row |= {"processes": processes, "threads": count}
                row |= {
                    f"{what}_ms_per_task": round(statistics.median(column), 2)
                    for what, column in zip(
                        ("clock", "processor"), zip(*spent, strict=True), strict=True
                    )
                }
                for than, other in (
                    ("one_thread", (name, 1, 1)),
                    ("before", ("before", processes, count)),
                ):
                    if other in found:
                        ratios = [
                            b[0] / a[0]
                            for a, b in zip(spent, found[other], strict=True)
                        ]
                        row[f"times_as_fast_as_{than}"] = round(
                            statistics.median(ratios), 2
                        )
                rows.append(row)
                print(
                    "  ".join(f"{key} {value}" for key, value in row.items()),
                    flush=True,
                )
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with open(asked.out, "w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(
            handle, list(dict.fromkeys(itertools.chain(*rows))), lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
    print(f"written to {asked.out}")


if __name__ == "__main__":
    main()
