"""Clients per second of one training by one process and by two of one core each, and by
one of two threads.

    uv run python benchmarks/processes.py [--pairs 3] [--rounds 6] [--cohort 64] [--filters 64] [--steps 5]

DP-AGR on random images, 5-way 1-shot, second order, as the workflow trains it by
torchrun; in turns, ratio to one process pair by pair. The first two rounds, in which
loops are read and processes come together, do not count. Each case is held to as many
cores as it has threads in all.
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

WARM = 2
CASES = {"1 process": (1, 1), "2 processes": (2, 1), "1 process, 2 threads": (1, 2)}


def run_of(asked: argparse.Namespace) -> Method:
    """The run that is timed."""
    examples = {"examples_per_class": 2, "support_per_class": 1, "query_per_class": 1}
    return read_run(
        {
            "method": "dp-agr",
            "seed": 0,
            "dataset": "omniglot",
            "task": {"ways": 5, "shots": 1},
            "clients": {"count": asked.cohort * asked.rounds} | examples,
            "model": {"kind": "conv4", "filters": asked.filters},
            "participation": {
                "kind": "one-pass",
                "cohort": asked.cohort,
                "rounds": asked.rounds,
            },
            "client_update": {"kind": "maml", "inner_steps": asked.steps, "order": 2},
        }
    )


def data_of(run: Method, folder: Path) -> None:
    """Random images of Omniglot's size, and the run's clients."""
    images = np.random.default_rng(0).integers(
        0, 256, size=(40, 20, 28, 28, 1), dtype=np.uint8
    )
    splits = ("train",) * 20 + ("validation",) * 10 + ("test",) * 10
    names = tuple(f"class{index}" for index in range(40))
    RawImages(images=images, class_names=names, splits=splits, versions={}).save(
        folder / "data", {"name": "-"}
    )
    run.clients.make(folder / "data", ways=5, seed=0).save(folder / "clients")


def rate_of(run: Method, folder: Path, processes: int, threads: int) -> float:
    """Clients per second of the rounds that count."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: processes * threads])
    place = folder / "results" / "runs" / run.folder
    write_text(place / "config.yaml", run.to_yaml())
    given = {
        "config": str(place / "config.yaml"),
        "data_dir": str(folder / "data"),
        "clients_dir": str(folder / "clients"),
        "run_dir": str(place),
        "threads": threads,
        "checkpoint_seconds": 1e9,
        "device": "cpu",
        "kernels": True,
        "references": [],
    }
    try:
        train_together(given, processes=processes, log=folder / "processes.log")
    finally:
        os.sched_setaffinity(0, cores)
    with open(place / "history.csv", newline="") as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)][WARM:]
    return run.participation.cohort * len(seconds) / sum(seconds)  # type: ignore[attr-defined,no-any-return]


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
    asked = parser.parse_args()
    run = run_of(asked)
    rates = {name: list[float]() for name in CASES}
    with tempfile.TemporaryDirectory() as name:
        data_of(run, Path(name))
        for _ in range(asked.pairs):
            for case, (processes, threads) in CASES.items():
                rates[case].append(rate_of(run, Path(name), processes, threads))
    print(
        "| started as | clients/s, median | ratio, median (min to max) |\n|---|---|---|"
    )
    for case, found in rates.items():
        ratios = [
            one / other for one, other in zip(found, rates["1 process"], strict=True)
        ]
        print(
            f"| {case} | {statistics.median(found):.1f} |"
            f" {statistics.median(ratios):.2f} ({min(ratios):.2f} to"
            f" {max(ratios):.2f}) |"
        )


if __name__ == "__main__":
    main()
