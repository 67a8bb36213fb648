"""Finished runs, made by hand: what reporting reads, without training anything."""

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpfedbench.config import RunConfig
from dpfedbench.experiments import Item, Plan, make_plan
from dpfedbench.files import write_json
from dpfedbench.methods import METHODS
from dpfedbench.reporting import figures, page, tables
from dpfedbench.reporting.provenance import provenance

DEFAULTS: dict[str, dict[str, Any]] = {name: method.DEFAULTS for name, method in METHODS.items()}
TITLES = {name: method.TITLE for name, method in METHODS.items()}
LEVELS = {
    "random": 45.0,
    "maml": 92.0,
    "dp-agr": 75.0,
    "dp-maml": 74.0,
    "dp-agrlr": 60.0,
    "dp-reptile": 50.0,
    "dp-maml-sample": 55.0,
}


def write_run(results: Path, run: RunConfig, accuracies: list[float]) -> None:
    """A run's folder with the given per-task accuracies, in percent."""
    folder = results / "runs" / run.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(run.to_yaml(), encoding="utf-8")
    mean = sum(accuracies) / len(accuracies)
    metrics = {"accuracy": mean, "ci_low": mean - 1, "ci_high": mean + 1, "tasks": len(accuracies)}
    (folder / "metrics.json").write_text(json.dumps(metrics | {"per_task": accuracies}), encoding="utf-8")
    training = {
        "rounds_run": run.participation.rounds,
        "seconds": 30.0,
        "milliseconds_per_client": 10.0 + run.seed,
        "notices": list(run.notices),
    }
    (folder / "training.json").write_text(json.dumps(training), encoding="utf-8")
    profiles = {}
    z = 1.0
    if run.private:
        z = (run.noise.multiplier if run.noise else None) or 1.0
        for name, epsilon in (("as_claimed", 1.5 / z), ("holds", 4.887 / z)):
            profiles[name] = {
                "epsilon_low": epsilon,
                "epsilon_high": epsilon,
                "delta": run.delta,
                "unit": "client",
                "status": "proved",
                "adjacency": "zero-out",
                "observer": "everyone",
                "explanation": f"what {name} rests on",
            }
    account = {"delta": run.delta, "unit": "client" if profiles else None, "profiles": profiles}
    account["noise_multiplier"] = z
    audit = {"epsilon": 0.8 / z, "method": "one-run f-DP", "confidence": 0.95, "reason": ""}
    audit |= {"unit": "client", "observer": "everyone"}
    if run.local and run.noise:  # two-fold: each record is protected from the server as well
        own = {"unit": "record", "observer": "the server"}
        of_records = {name: profile | own for name, profile in profiles.items()}
        account["also"] = [account | own | {"profiles": of_records, "delta": run.local.delta}]
        audit["also"] = [audit | own]
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
    if run.validation.every:
        measured = rounds % run.validation.every == 0
        history["validation_accuracy"] = np.where(measured, 90 - 20 * decay, np.nan)
        history["validation_loss"] = np.where(measured, decay, np.nan)
    history.to_csv(folder / "history.csv", index=False)
    (folder / "ledger.jsonl").write_text("", encoding="utf-8")
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "train.log").write_text("---- train\n", encoding="utf-8")


@pytest.fixture(scope="session")
def configuration() -> dict[str, Any]:
    """The default configuration, as Snakemake merges it, with a shorter Table 2."""
    import yaml

    from dpfedbench.config import merge

    root = Path(__file__).resolve().parents[2] / "config"
    files = [root / "config.yaml", *sorted((root / "experiments").glob("*.yaml"))]
    found = merge(*(yaml.safe_load(path.read_text(encoding="utf-8")) for path in files))
    # Table 2 with the rows of one data set, which is what the tests of tables and page count.
    found["experiments"]["dp-fedmeta"]["tables"]["table2"]["tasks"] = ["omniglot-1shot", "omniglot-5shot"]
    return found


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


REASON = "holds: " + "each record of a client in each lot with the same chance; " * 4
PRIVACY = f"""paper,method,variant,dataset,unit,delta,epsilon_claimed,epsilon_holds_low,epsilon_holds_high,\
epsilon_image_level,accuracy,reason
dp-fedmeta,dp-agr,one-pass,glyphs,client,1e-06,1.5,4.887,4.887,none,72.4,short
dp-fedmeta,dp-agr,Poisson,glyphs,client,1e-06,1.5,1.49,1.51,9.5,71,short
adap-dp-fl,adap-dp-fl,"C <b>from</b> raw norms",digits,record,1e-05,0.215,,inf,inf,61.9,{REASON}
"""
SITE_ITEMS = ("table2", "figure2b", "figure4b")


@dataclasses.dataclass(frozen=True)
class Site:
    """A results folder with its page, and what the page was made from."""

    folder: Path
    items: list[dict[str, Any]]
    arguments: dict[str, Any]

    @property
    def page(self) -> Path:
        return self.folder / "index.html"


@pytest.fixture(scope="session")
def site(
    tmp_path_factory: pytest.TempPathFactory, plan: Plan, results: Path, published: Path, configuration: dict[str, Any]
) -> Site:
    """Table 2 and two figures of DP-FedMeta, and a table and a figure that no configuration describes, on a page."""
    folder = tmp_path_factory.mktemp("site") / "results"
    shutil.copytree(results, folder)
    items: list[dict[str, Any]] = []
    for name in SITE_ITEMS:
        item = plan.items["dp-fedmeta", name]
        description = item.describe(TITLES)
        path = folder / ("tables" if item.kind == "table" else "figures") / "dp-fedmeta" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if item.kind == "table":
            path = path.with_suffix(".csv")
            rows = tables.read_rows(description, folder)
            tidy = tables.tidy(description, rows, published)
            path.write_text(tables.to_csv(tidy), encoding="utf-8")
            path.with_suffix(".md").write_text(tables.to_markdown(description, rows, tidy, "it"), encoding="utf-8")
        else:
            path = path.with_suffix(".png")
            drawing, drawn = figures.make(description, folder, published)
            drawing.savefig(path)
            path.with_suffix(".csv").write_text(figures.to_csv(drawn), encoding="utf-8")
        relative = path.relative_to(folder).as_posix()
        items.append({"path": relative, "command": f"snakemake results/{relative}", "description": description})
    (folder / "tables" / "privacy.csv").write_text(PRIVACY, encoding="utf-8")
    (folder / "tables" / "privacy.md").write_text("# t\n\n- What it rests on.\n\nMade by\n\n- x\n", encoding="utf-8")
    shutil.copy(folder / "figures" / "dp-fedmeta" / "figure4b.png", folder / "figures" / "privacy.png")
    for relative in ("tables/privacy.csv", "figures/privacy.png"):
        items.append({"path": relative, "command": f"snakemake results/{relative}", "description": None})
    stand_ins = {"omniglot": "glyphs"}
    write_json(folder / "provenance.json", provenance(folder, "snakemake all", stand_ins=stand_ins))
    papers = {
        name: {key: paper[key] for key in ("title", "source")} for name, paper in configuration["experiments"].items()
    }
    datasets = [{"name": "glyphs", "version": "1", "source": "drawn", "licence": "MIT"}]
    arguments = {
        "results": folder, "folder": folder, "published": published, "papers": papers, "datasets": datasets,
        "made": "today",
    }  # fmt: skip
    (folder / "index.html").write_text(page.make(items, **arguments), encoding="utf-8")
    return Site(folder, items, arguments)


@pytest.fixture(scope="session")
def described(plan: Plan) -> Callable[[str], dict[str, Any]]:
    """A table or figure, of DP-FedMeta where nothing else is said, as reporting gets it."""

    def describe(name: str, paper: str = "dp-fedmeta") -> dict[str, Any]:
        item: Item = plan.items[paper, name]
        return item.describe(TITLES)

    return describe


@pytest.fixture(scope="session")
def published() -> Path:
    """The published numbers."""
    return Path(__file__).resolve().parents[2] / "config" / "published.csv"
