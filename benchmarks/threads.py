"""Measure the milliseconds per client of one training with one and two threads.

    uv run python benchmarks/threads.py [--pairs 5] [--tasks 200] [--filters 16 32 64] [--steps 2]
        [--before ../checkout-of-another-commit] [--out results/benchmarks/threads.csv]

The benchmark computes second-order meta-gradients of 5-way 1-shot tasks, clipped and
summed with noise, as in a round. One and two threads take turns in one process. The
checkouts (`--before`) take turns in processes of their own. The ratios are computed for
each pair. Beside wall time the table has processor time, which shows whether other work
slowed the machine down. It also has two simultaneous processes of one thread each. They
share nothing, so any loss against one process is the machine's and not the threads'.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
COLUMNS = (
    "checkout",
    "filters",
    "inner_steps",
    "processes",
    "threads",
    "clock_ms_per_task",
    "processor_ms_per_task",
    "times_as_fast_as_one_thread",
    "times_as_fast_as_before",
)

Case = tuple[str, int, int]
"""Checkout, processes and threads."""

Times = dict[Case, list[tuple[float, float]]]
"""Wall and processor milliseconds per task of each pair, by case."""


def print_times(
    benchmarks: str,
    folder: str,
    filters: int,
    steps: int,
    tasks: int,
    threads: list[int],
) -> None:
    """Print wall and processor milliseconds per task for each number of threads.

    The gradients are computed by `meta_gradient.py` of the checkout that is measured.
    Before each measurement the process prints "ready" and waits for a line.

    Args:
        benchmarks: folder `benchmarks/` of the checkout.
        folder: folder of the glyphs.
        filters: of the network.
        steps: inner steps.
        tasks: tasks of the cohort.
        threads: the numbers of threads.
    """
    sys.path.insert(0, benchmarks)
    from meta_gradient import CohortSum, Tasks, load_glyphs

    data = load_glyphs(Path(folder))
    cohort = Tasks(data, tasks)
    for count in threads:
        cohort_sum = CohortSum(data, filters, steps, 2, count, True)
        cohort_sum(Tasks(data, 16))  # loads the compiled loops
        print("ready", flush=True)
        input()
        wall = time.perf_counter()
        processor = time.process_time()
        cohort_sum(cohort)
        wall = time.perf_counter() - wall
        processor = time.process_time() - processor
        print(1e3 * wall / tasks, 1e3 * processor / tasks, flush=True)


def measure(
    checkout: Path,
    folder: str,
    numbers: tuple[int, ...],
    threads: list[int],
    processes: int = 1,
) -> list[tuple[float, ...]]:
    """Return what `print_times` prints with the code of a checkout.

    Args:
        checkout: the checkout.
        folder: folder of the glyphs.
        numbers: filters, inner steps and tasks.
        threads: the numbers of threads.
        processes: how many processes run at the same time. The first one's times are
            returned.

    Returns:
        Wall and processor milliseconds per task, for each number of threads.
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
    # Snakemake sets both in a job of two threads. Matrix products that heed them start
    # threads of their own.
    sources = [checkout / "src", *sorted(checkout.glob("packages/*/src"))]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
    }
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        for _ in range(processes)
    ]
    times = []
    for _ in threads:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "a process ended"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        lines = [
            process.stdout.readline()
            for process in started
            if process.stdout is not None
        ]
        times.append(tuple(map(float, lines[0].split())))
    for process in started:
        process.communicate()
    return times


def measure_cases(
    checkouts: Mapping[str, Path],
    folder: str,
    filters: int,
    options: argparse.Namespace,
) -> Times:
    """Return the times of all cases at one number of filters, measured in turns.

    Args:
        checkouts: the checkouts, by name.
        folder: folder of the glyphs.
        filters: of the network.
        options: the command line.
    """
    times: Times = {}
    numbers = filters, options.steps, options.tasks
    for _ in range(options.pairs):
        for name, checkout in checkouts.items():
            one_thread, two_threads = measure(checkout, folder, numbers, [1, 2])
            (two_processes,) = measure(checkout, folder, numbers, [1], processes=2)
            for processes, threads, (wall, processor) in (
                (1, 1, one_thread),
                (1, 2, two_threads),
                (2, 1, two_processes),
            ):
                case_times = times.setdefault((name, processes, threads), [])
                case_times.append((wall / processes, processor))
    return times


def make_row(case: Case, times: Times) -> dict[str, Any]:
    """Return the row of a case: median times, and ratios to other cases."""
    name, processes, threads = case
    row: dict[str, Any] = {"checkout": name, "processes": processes, "threads": threads}
    wall, processor = map(statistics.median, zip(*times[case], strict=True))
    row["clock_ms_per_task"] = round(wall, 2)
    row["processor_ms_per_task"] = round(processor, 2)
    for reference, reference_case in (
        ("one_thread", (name, 1, 1)),
        ("before", ("before", processes, threads)),
    ):
        if reference_case in times:
            ratios = [
                reference_times[0] / case_times[0]
                for case_times, reference_times in zip(
                    times[case], times[reference_case], strict=True
                )
            ]
            ratio = round(statistics.median(ratios), 2)
            row[f"times_as_fast_as_{reference}"] = ratio
    return row


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
    options = parser.parse_args()
    if options.once:
        benchmarks, folder, *numbers = options.once
        print_times(benchmarks, folder, *map(int, numbers), threads=options.threads)
        return
    checkouts = {"now": HERE}
    if options.before:
        checkouts["before"] = options.before.resolve()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for filters in options.filters:
            times = measure_cases(checkouts, folder, filters, options)
            for case in times:
                row = make_row(case, times)
                row |= {"filters": filters, "inner_steps": options.steps}
                rows.append({name: row[name] for name in COLUMNS if name in row})
                print(
                    "  ".join(f"{key} {value}" for key, value in rows[-1].items()),
                    flush=True,
                )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with open(options.out, "w", newline="", encoding="utf-8") as handle:
        columns = list(dict.fromkeys(itertools.chain(*rows)))
        writer = csv.DictWriter(handle, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
