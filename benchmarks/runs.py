"""One series of a preset, from data to accuracy, without Snakemake: for a machine that
is lent for minutes.

    uv run python benchmarks/runs.py paper dp-fedmeta/table2 dp-agr [--task "5-way 1-shot"] [--dataset omniglot]
        [--device cuda] [--threads 1] [--seed 0] [--data FOLDER] [--out results] [--rounds N]

Folders are the workflow's. Called again, it goes on: from the last checkpoint where a
training was killed. `--rounds` trains so many rounds alone, at their usual size, and
says what all would take; such a model is not tested. Prints what training.json,
metrics.json and privacy.json say of rounds, seconds, clients per second, accuracy and
epsilon.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from dpfedbench.data.registry import prepare
from dpfedbench.evaluation import evaluate
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from dpfedbench.federation.accounts import account_run
from dpfedbench.federation.engine import train

ROOT = Path(__file__).resolve().parents[1]


def planned(
    preset: str,
    item: str,
    series: str,
    dataset: str | None,
    task: str | None,
    seed: int,
) -> Any:
    """The run of a series that a preset plans, of the first task that fits."""
    config = ROOT / "config"
    files = [config / "config.yaml", *sorted((config / "experiments").glob("*.yaml"))]
    files += [config / "presets" / f"{preset}.yaml"] if preset != "default" else []
    found = make_plan(
        Configuration.read(
            overlaid(*(yaml.safe_load(file.read_text("utf-8")) for file in files))
        )
    )
    paper, _, name = item.partition("/")
    runs = [
        run
        for cell in found.items[paper, name].cells
        for run in cell.runs
        if (cell.series, run.seed) == (series, seed)
        and run.dataset == (dataset or run.dataset)
        and run.task_name == (task or run.task_name)
    ]
    if not runs:
        raise SystemExit(f"{preset} has no {series} of seed {seed} in {item}")
    return runs[0]


def main() -> None:
    """Make what is missing, and print."""
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
        "--data", type=Path, help="folder with archives, in place of a download"
    )
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    run = planned(
        options.preset,
        options.item,
        options.series,
        options.dataset,
        options.task,
        options.seed,
    )
    data = options.out / "data" / run.dataset
    clients = options.out / "clients" / run.clients_folder
    folder = (
        options.out
        / ("runs" if options.rounds is None else f"first-{options.rounds}-rounds")
        / run.folder
    )
    if not (data / "summary.json").exists():
        prepare(run.dataset, data, options.data, None)
    started = time.perf_counter()
    if not (clients / "summary.json").exists():
        run.clients.make(data, ways=run.task.ways, seed=run.seed).save(clients)
        print(
            f"partition of {run.clients.count:,} clients:"
            f" {time.perf_counter() - started:.1f} s"
        )
    rounds = run.participation.rounds
    first = run
    if options.rounds is not None:
        first = run.replace(
            participation=run.participation.replace(rounds=options.rounds)
        )
    if not (folder / "training.json").exists():
        train(
            first,
            data_dir=data,
            clients_dir=clients,
            run_dir=folder,
            threads=options.threads,
            device=options.device,
        )
    said = json.loads((folder / "training.json").read_text("utf-8"))
    shown = {"run": run.folder} | {
        key: said[key]
        for key in (
            "device",
            "threads",
            "rounds_run",
            "seconds",
            "clients_per_second",
            "resumed",
        )
        if key in said
    }
    if said["device"] == "cuda":
        shown["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
    if options.rounds is not None:
        if (
            said["seconds"] is not None
        ):  # those of a private run with secret cohorts are not told
            shown["hours_of_all"] = round(
                said["seconds"] / said["rounds_run"] * rounds / 3600, 2
            )
    else:
        evaluate(
            run,
            data_dir=data,
            model_path=folder / "model.safetensors",
            out_path=folder / "metrics.json",
            threads=options.threads,
        )
        account_run(run, folder, folder / "privacy.json", clients_dir=clients)
        metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
        profiles = json.loads((folder / "privacy.json").read_text("utf-8")).get(
            "profiles", {}
        )
        shown |= {
            key: round(metrics[key], 2) for key in ("accuracy", "ci_low", "ci_high")
        }
        shown |= {
            f"epsilon {name}": found.get("epsilon_high")
            for name, found in profiles.items()
        }
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main()
