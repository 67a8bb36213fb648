"""Measure the rate of one training by one process, two processes, and two threads.

    uv run python benchmarks/processes.py [--pairs 3] [--rounds 6] [--cohort 64] [--filters 64] [--steps 5]

The rate is in clients per second. Each of two processes has one core. The training is
DP-AGR on random images, 5-way 1-shot, second order, started by torchrun as in the
workflow. The cases take turns, and the ratio to one process is computed for each pair.
The first two rounds do not count: in them compiled loops are loaded and the processes
connect. Each case may use as many cores as it has threads in all.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np

from dpfedbench.data.images import RawImages
from dpfedbench.files import write_text
from dpfedbench.method import Method
from dpfedbench.papers import read_run
from workflow_jobs.launch import train_together

WARM_UP_ROUNDS = 2
CASES = {"1 process": (1, 1), "2 processes": (2, 1), "1 process, 2 threads": (1, 2)}
"""Processes and threads of each process, by case."""


def make_run(options: argparse.Namespace) -> Method:
    """Return the run that is timed."""
    examples = {"examples_per_class": 2, "support_per_class": 1, "query_per_class": 1}
    return read_run(
        {
            "method": "dp-agr",
            "seed": 0,
            "dataset": "omniglot",
            "task": {"ways": 5, "shots": 1},
            "clients": {"count": options.cohort * options.rounds} | examples,
            "model": {"kind": "conv4", "filters": options.filters},
            "participation": {
                "kind": "one-pass",
                "cohort": options.cohort,
                "rounds": options.rounds,
            },
            "client_update": {"kind": "maml", "inner_steps": options.steps, "order": 2},
        }
    )


def write_data(run: Method, folder: Path) -> None:
    """Write random images of Omniglot's size, and the run's clients."""
    images = np.random.default_rng(0).integers(
        0, 256, size=(40, 20, 28, 28, 1), dtype=np.uint8
    )
    splits = ("train",) * 20 + ("validation",) * 10 + ("test",) * 10
    names = tuple(f"class{index}" for index in range(40))
    RawImages(images=images, class_names=names, splits=splits, versions={}).save(
        folder / "data", {"name": "-"}
    )
    run.clients.make(folder / "data", ways=5, seed=0).save(folder / "clients")


def measure_rate(run: Method, folder: Path, processes: int, threads: int) -> float:
    """Train the run, and return the clients per second of the rounds that count.

    Args:
        run: the run.
        folder: folder of its data and clients.
        processes: number of processes.
        threads: threads of each process.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: processes * threads])
    run_folder = folder / "results" / "runs" / run.folder
    write_text(run_folder / "config.yaml", run.to_yaml())
    arguments = {
        "config": str(run_folder / "config.yaml"),
        "data_dir": str(folder / "data"),
        "clients_dir": str(folder / "clients"),
        "run_dir": str(run_folder),
        "threads": threads,
        "checkpoint_seconds": 1e9,
        "device": "cpu",
        "kernels": True,
        "references": [],
    }
    try:
        train_together(arguments, processes=processes, log=folder / "processes.log")
    finally:
        os.sched_setaffinity(0, cores)
    with open(run_folder / "history.csv", newline="") as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
    seconds = seconds[WARM_UP_ROUNDS:]
    cohort: int = run.participation.cohort  # type: ignore[attr-defined]
    return cohort * len(seconds) / sum(seconds)


def main() -> None:
    """Time all cases in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (
        ("pairs", 3),
        ("rounds", 6),
        ("cohort", 64),
        ("filters", 64),
        ("steps", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    run = make_run(options)
    rates: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_data(run, folder)
        for _ in range(options.pairs):
            for case, (processes, threads) in CASES.items():
                rates[case].append(measure_rate(run, folder, processes, threads))
    print(
        "| started as | clients/s, median | ratio, median (min to max) |\n|---|---|---|"
    )
    for case, case_rates in rates.items():
        ratios = [
            rate / reference
            for rate, reference in zip(case_rates, rates["1 process"], strict=True)
        ]
        print(
            f"| {case} | {statistics.median(case_rates):.1f} |"
            f" {statistics.median(ratios):.2f} ({min(ratios):.2f} to"
            f" {max(ratios):.2f}) |"
        )


if __name__ == "__main__":
    main()
