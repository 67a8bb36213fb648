"""Finished runs, made by hand: what reporting reads, without training anything."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpfedbench.config import RunConfig
from dpfedbench.experiments import Item, Plan, make_plan
from dpfedbench.methods import METHODS

DEFAULTS: dict[str, dict[str, Any]] = {name: method.DEFAULTS for name, method in METHODS.items()}
TITLES = {name: method.TITLE for name, method in METHODS.items()}
LEVELS = {"random": 45.0, "maml": 92.0, "dp-agr": 75.0}


def write_run(results: Path, run: RunConfig, accuracies: list[float]) -> None:
    """A run's folder with the given per-task accuracies, in percent."""
    folder = results / "runs" / run.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(run.to_yaml(), encoding="utf-8")
    mean = sum(accuracies) / len(accuracies)
    metrics = {"accuracy": mean, "ci_low": mean - 1, "ci_high": mean + 1, "tasks": len(accuracies)}
    (folder / "metrics.json").write_text(json.dumps(metrics | {"per_task": accuracies}), encoding="utf-8")
    training = {"rounds_run": run.participation.rounds, "notices": list(run.notices)}
    (folder / "training.json").write_text(json.dumps(training), encoding="utf-8")
    profiles = {}
    z = 1.0
    if run.private and run.noise:
        z = run.noise.multiplier or 1.0
        for name, epsilon in (("as_claimed", 1.5 / z), ("holds", 4.887 / z)):
            profiles[name] = {
                "epsilon_low": epsilon,
                "epsilon_high": epsilon,
                "delta": run.budget.delta if run.budget else None,
                "unit": "client",
                "status": "proved",
                "adjacency": "zero-out",
                "observer": "everyone",
                "explanation": f"what {name} rests on",
            }
    delta = run.budget.delta if run.budget else None
    account = {"delta": delta, "unit": "client" if profiles else None, "profiles": profiles}
    account["noise_multiplier"] = z
    audit = {"epsilon": 0.8 / z, "method": "one-run f-DP", "confidence": 0.95, "reason": ""}
    (folder / "audit.json").write_text(json.dumps(audit), encoding="utf-8")
    (folder / "privacy.json").write_text(json.dumps(account), encoding="utf-8")
    rounds = np.arange(1, run.participation.rounds + 1)
    history = pd.DataFrame({"round": rounds, "clients": run.participation.cohort, "seconds": 1.0})
    decay = 2.0 * np.exp(-rounds / 15) + 0.3 + 0.02 * run.seed
    if run.private:
        history["threshold"] = np.minimum.accumulate(decay) * 0.5
        history["released_norm"] = 100 * decay
    else:
        history["norm_q10"], history["norm_q50"], history["norm_q90"] = decay * 0.6, decay, decay * 1.7
    history.to_csv(folder / "history.csv", index=False)


@pytest.fixture(scope="session")
def configuration() -> dict[str, Any]:
    """The default configuration, as Snakemake merges it."""
    import yaml

    from dpfedbench.config import merge

    root = Path(__file__).resolve().parents[2] / "config"
    files = [root / "config.yaml", *sorted((root / "experiments").glob("*.yaml"))]
    return merge(*(yaml.safe_load(path.read_text(encoding="utf-8")) for path in files))


@pytest.fixture(scope="session")
def plan(configuration: dict[str, Any]) -> Plan:
    """The default configuration's tables and figures."""
    return make_plan(configuration, method_defaults=DEFAULTS)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Path:
    """All runs of the default configuration, finished."""
    folder = tmp_path_factory.mktemp("results")
    for run in plan.runs.values():
        if run.by_record:
            continue
        level = LEVELS[run.method] + 1.5 * run.seed
        if run.noise and run.noise.multiplier and run.clipping:
            level -= 6 * math.log2(run.noise.multiplier) + abs(run.clipping.percentile - 80) / 8
        if run.clipping and run.clipping.rule == "constant":
            level -= 5
        spread = np.random.default_rng(run.seed).normal(0, 8, 40)
        write_run(folder, run, [float(value) for value in np.clip(level + spread, 0, 100)])
    return folder


@pytest.fixture(scope="session")
def described(plan: Plan) -> Callable[[str], dict[str, Any]]:
    """A table or figure of DP-FedMeta as reporting gets it."""

    def describe(name: str) -> dict[str, Any]:
        item: Item = plan.items["dp-fedmeta", name]
        return item.describe(TITLES)

    return describe


@pytest.fixture(scope="session")
def published() -> Path:
    """The published numbers."""
    return Path(__file__).resolve().parents[2] / "config" / "published.csv"
