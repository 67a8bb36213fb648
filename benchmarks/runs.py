"""Run one series of a preset, from data to accuracy, without Snakemake.

    uv run python benchmarks/runs.py paper dp-fedmeta/table2 dp-agr [--task "5-way 1-shot"] [--dataset omniglot]
        [--device cuda] [--threads 1] [--seed 0] [--data FOLDER] [--out results] [--rounds N]

It suits a machine that is available for minutes. The folders are those of the workflow.
A further call goes on with the missing steps, and from the last checkpoint of a
training that was killed. With `--rounds` it trains only so many rounds, at their usual
size, and estimates the time of all; it does not test such a model. It prints rounds,
seconds, clients per second, accuracy and epsilon from training.json, metrics.json and
privacy.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch

from dpfedbench.data.registry import prepare
from dpfedbench.evaluation import evaluate
from dpfedbench.experiments.configuration import Configuration, read_shipped
from dpfedbench.experiments.expand import make_plan
from dpfedbench.files import read_json
from dpfedbench.training.accounts import account_run
from dpfedbench.training.engine import train

ROOT = Path(__file__).resolve().parents[1]
TRAINING_KEYS = (
    "device",
    "threads",
    "rounds_run",
    "seconds",
    "clients_per_second",
    "resumed",
)


def find_run(
    preset: str,
    item: str,
    series: str,
    dataset: str | None,
    task: str | None,
    seed: int,
) -> Any:
    """Return the first run of a preset's plan that satisfies the conditions.

    Args:
        preset: name of the preset, or "default".
        item: table or figure, as PAPER/NAME.
        series: series of the item.
        dataset: data set; None: any.
        task: task; None: any.
        seed: seed of the run.
    """
    values = read_shipped(ROOT / "config", None if preset == "default" else preset)
    plan = make_plan(Configuration.read(values))
    paper, _, name = item.partition("/")
    runs = [
        run
        for cell in plan.items[paper, name].cells
        for run in cell.runs
        if (cell.series, run.seed) == (series, seed)
        and run.dataset == (dataset or run.dataset)
        and run.task.label == (task or run.task.label)
    ]
    if not runs:
        raise SystemExit(f"{preset} has no {series} of seed {seed} in {item}")
    return runs[0]


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("preset", "item", "series"):
        parser.add_argument(name)
    parser.add_argument("--dataset")
    parser.add_argument("--task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="train so many rounds, and stop")
    parser.add_argument(
        "--data", type=Path, help="folder with archives, instead of a download"
    )
    parser.add_argument("--out", type=Path, default=Path("results"))
    return parser.parse_args()


def measure_results(
    run: Any, data: Path, clients: Path, folder: Path, threads: int
) -> dict[str, Any]:
    """Test and account for a trained run, and return accuracy and epsilons.

    Args:
        run: the run.
        data: folder of its data set.
        clients: folder of its clients.
        folder: folder of the run, with its model and ledger.
        threads: CPU threads of the test.
    """
    evaluate(
        run,
        data_dir=data,
        model_path=folder / "model.safetensors",
        out_path=folder / "metrics.json",
        threads=threads,
    )
    account_run(run, folder, folder / "privacy.json", clients_dir=clients)
    metrics = read_json(folder / "metrics.json")
    results = {key: round(metrics[key], 2) for key in ("accuracy", "ci_low", "ci_high")}
    profiles = read_json(folder / "privacy.json").get("profiles", {})
    for name, profile in profiles.items():
        results[f"epsilon {name}"] = profile.get("epsilon_high")
    return results


def main() -> None:
    """Run the missing steps, and print the results."""
    options = read_options()
    run = find_run(
        options.preset,
        options.item,
        options.series,
        options.dataset,
        options.task,
        options.seed,
    )
    data = options.out / "data" / run.dataset
    clients = options.out / "clients" / run.clients_folder
    runs = "runs" if options.rounds is None else f"first-{options.rounds}-rounds"
    folder = options.out / runs / run.folder
    if not (data / "summary.json").exists():
        prepare(run.dataset, data, options.data)
    start = time.perf_counter()
    if not (clients / "summary.json").exists():
        run.clients.make(data, ways=run.task.ways, seed=run.seed).save(clients)
        print(
            f"partition of {run.clients.count:,} clients:"
            f" {time.perf_counter() - start:.1f} s"
        )
    rounds = run.participation.rounds
    trained_run = run
    if options.rounds is not None:
        trained_run = run.replace(
            participation=dataclasses.replace(run.participation, rounds=options.rounds)
        )
    if not (folder / "training.json").exists():
        train(
            trained_run,
            data_dir=data,
            clients_dir=clients,
            run_dir=folder,
            threads=options.threads,
            device=options.device,
        )
    training = read_json(folder / "training.json")
    shown = {"run": run.folder}
    shown |= {key: training[key] for key in TRAINING_KEYS if key in training}
    if training["device"] == "cuda":
        shown["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
    if options.rounds is not None:
        # A private run with secret cohorts does not record its time.
        if training["seconds"] is not None:
            seconds_per_round = training["seconds"] / training["rounds_run"]
            shown["hours_of_all"] = round(seconds_per_round * rounds / 3600, 2)
    else:
        shown |= measure_results(run, data, clients, folder, options.threads)
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main()
