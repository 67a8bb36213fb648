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

from dpfedbench.evaluation.intervals import mean_interval
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.plan import Plan
from dpfedbench.files import write_json
from dpfedbench.method import Method
from dpfedbench.results import figures, formats, page, tables
from dpfedbench.results.items import Item
from tests.shipped import parsed
from workflow_jobs.provenance import provenance

Cells = list[dict[str, Any]]


def plain_item(description: dict[str, Any]) -> Item:
    """Return a table or figure, as its script gets it from Snakemake."""
    return Item(**json.loads(json.dumps(description)))


def changed_cells(item: Item, **values: Any) -> Item:
    """Return the item with other values in all its cells."""
    return dataclasses.replace(item, cells=[{**cell, **values} for cell in item.cells])


def runs_of(cells: Any, number: int | None = None) -> list[str]:
    """Return the runs of some cells, or of the cell with a number."""
    return [cell["run"] for cell in cells if number is None or cell["cell"] == number]


def private_configurations(plan: Plan, paper: str | None = None) -> list[Cells]:
    """Return the cells of each private configuration, in the order of the table of
    privacy.
    """
    records = plan.cell_records(paper, plan.audited_runs(paper))
    by_folder: dict[str, Cells] = {}
    for cell in sorted(records, key=lambda cell: not cell["kind"].endswith("table")):
        if cell["private"]:
            by_folder.setdefault(str(Path(cell["run"]).parent), []).append(cell)
    return list(by_folder.values())


def name_of(cells: Cells) -> str:
    """Return the name of a configuration in the table of privacy."""
    return str(cells[0]["variant"] or cells[0]["label"])


def is_repaired(cells: Cells) -> bool:
    """Whether a configuration repairs a claim in a table."""
    return any(cell["kind"] == "table" and cell["repairs"] for cell in cells)


def with_values(cells: Cells, **values: Any) -> Cells:
    """Return the cells with other values."""
    return [{**cell, **values} for cell in cells]


LEVELS = {
    "random": 45.0,
    "public-alone": 52.0,
    "maml": 92.0,
    "dp-agr": 75.0,
    "dp-agr-ftrl": 76.0,
    "dp-agr-secagg": 74.5,
    "dp-maml": 74.0,
    "dp-agrlr": 60.0,
    "dp-reptile": 50.0,
    "dp-maml-sample": 55.0,
}


def write_run(results: Path, run: Method, accuracies: list[float]) -> None:
    """A run's folder with the given per-task accuracies, in percent."""
    folder, plain = results / "runs" / run.folder, run.plain()
    participation = plain.get("participation") or {"rounds": 0, "cohort": 0}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(run.to_yaml(), encoding="utf-8")
    interval = mean_interval(accuracies)
    metrics = {
        "accuracy": interval.mean,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "tasks": len(accuracies),
    }
    (folder / "metrics.json").write_text(
        json.dumps(metrics | {"per_task": accuracies}), encoding="utf-8"
    )
    training = {
        "rounds_run": participation["rounds"],
        "seconds": 30.0,
        "milliseconds_per_client": 10.0 + run.seed,
        "notices": list(run.notices),
        "ledger": {"lines": 0, "head": ""},
    }
    (folder / "training.json").write_text(json.dumps(training), encoding="utf-8")
    profiles = {}
    z = 1.0
    if run.private:
        z = plain.get("noise", {}).get("multiplier") or 1.0
        for name, epsilon in (("claimed", 1.5 / z), ("proven", 4.887 / z)):
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
    account = {
        "delta": run.delta,
        "unit": "client" if profiles else None,
        "profiles": profiles,
    }
    account |= {
        "noise_multiplier": z,
        "reasons": {} if profiles else {"proven": "no release claims privacy"},
    }
    audit = {
        "epsilon": 0.8 / z,
        "method": "f-DP by ranks",
        "confidence": 0.95,
        "reason": "",
        "epsilon_ideal": 0.9 / z,
    }
    audit |= {"unit": "client", "observer": "everyone"}
    if (
        run.own_delta and run.server_sum.private
    ):  # two-fold: each record is protected from the server as well
        of_record = {"unit": "record", "observer": "the server"}
        of_records = {name: profile | of_record for name, profile in profiles.items()}
        account["also"] = [
            account | {"unit": "record", "profiles": of_records, "delta": run.own_delta}
        ]
        audit["also"] = [audit | of_record]
    (folder / "audit.json").write_text(json.dumps(audit), encoding="utf-8")
    (folder / "privacy.json").write_text(json.dumps(account), encoding="utf-8")
    rounds = np.arange(1, participation["rounds"] + 1)
    history = pd.DataFrame(
        {"round": rounds, "clients": participation["cohort"], "seconds": 1.0}
    )
    decay = 2.0 * np.exp(-rounds / 15) + 0.3 + 0.02 * run.seed
    if run.private:
        history["threshold"] = np.minimum.accumulate(decay) * 0.5
        history["released_norm"] = 100 * decay
    else:
        history["norm_q10"], history["norm_q50"], history["norm_q90"] = (
            decay * 0.6,
            decay,
            decay * 1.7,
        )
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
    """The default configuration, as Snakemake merges it, of three papers and with a
    shorter Table 2.
    """
    root = Path(__file__).resolve().parents[3] / "config"
    papers = (
        "adap-dp-fl",
        "dp-fedmeta",
        "dp-maml",
        "frontier",
    )  # whatever else lies there
    files = [
        root / "config.yaml",
        *(root / "experiments" / f"{paper}.yaml" for paper in papers),
    ]
    merged = overlaid(*map(parsed, files))
    # Table 2 with the rows of one data set, which is what the tests of tables and page
    # count.
    merged["experiments"]["dp-fedmeta"]["tables"]["table2"]["tasks"] = [
        "omniglot-1shot",
        "omniglot-5shot",
    ]
    return merged


@pytest.fixture(scope="session")
def plan(configuration: dict[str, Any]) -> Plan:
    """The default configuration's tables and figures."""
    return make_plan(Configuration.read(configuration))


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Path:
    """All runs of the default configuration, finished."""
    folder = tmp_path_factory.mktemp("results")
    for run in plan.runs.values():
        if run.client_data == "records":
            continue
        level = LEVELS[run.method] + 1.5 * run.seed
        noise, clipping = (run.plain().get(key, {}) for key in ("noise", "clipping"))
        if noise.get("multiplier"):
            level -= (
                6 * math.log2(noise["multiplier"])
                + abs(clipping.get("percentile", 50) - 80) / 8
            )
        if clipping.get("kind") == "constant":
            level -= 5
        spread = np.random.default_rng(run.seed).normal(0, 8, 40)
        write_run(
            folder, run, [float(value) for value in np.clip(level + spread, 0, 100)]
        )
    return folder


REASON = "each record of a client in each lot with the same chance; " * 4
SITE_ITEMS = ("table2", "figure2b", "figure4b", "frontier")


@dataclasses.dataclass(frozen=True)
class Site:
    """A results folder with its page, and what the page was made from."""

    folder: Path
    items: list[page.Product]
    arguments: dict[str, Any]

    @property
    def page(self) -> Path:
        return self.folder / "index.html"


def with_accounts(results: Path, folders: list[str], **profiles: Any) -> None:
    """Write other values of some profiles into accounts."""
    for folder in dict.fromkeys(folders):
        path = results / "runs" / folder / "privacy.json"
        account = json.loads(path.read_text(encoding="utf-8"))
        for name, values in profiles.items():
            account["profiles"][name] = (
                account["profiles"].get(name, account["profiles"]["proven"]) | values
            )
        path.write_text(json.dumps(account), encoding="utf-8")


@pytest.fixture(scope="session")
def site(
    tmp_path_factory: pytest.TempPathFactory,
    plan: Plan,
    results: Path,
    published: Path,
    configuration: dict[str, Any],
) -> Site:
    """Table 2 and two figures of DP-FedMeta, and the table of privacy and its figure,
    on a page.
    """
    folder = tmp_path_factory.mktemp("site") / "results"
    shutil.copytree(results, folder)
    # With one ε; with a range and an account of images; of another paper without a
    # finite ε; and what the second mends.
    entries = private_configurations(plan)
    repaired_entries = [
        cells
        for cells in entries
        if cells[0]["paper"] == "dp-fedmeta" and is_repaired(cells)
    ]
    private = [
        with_values(repaired_entries[0], variant="one-pass"),
        with_values(repaired_entries[1], variant="Poisson"),
    ]
    another_method = {name: "adap-dp-fl" for name in ("paper", "method", "title")}
    another_method |= {
        "variant": "C <b>from</b> raw norms",
        "dataset": "digits",
        "audited_run": repaired_entries[2][0]["run"],
    }
    private += [with_values(repaired_entries[2], **another_method)]
    private += [
        next(
            cells
            for cells in entries
            if name_of(cells) == "dp-agr"
            and cells[0]["task"] == repaired_entries[0][0]["task"]
        )
    ]
    with_accounts(
        folder,
        runs_of(private[3]),
        claimed={"epsilon_low": 1.52, "epsilon_high": 1.52, "status": "void"},
    )
    with_accounts(
        folder,
        runs_of(private[1]),
        proven={"epsilon_low": 1.49, "epsilon_high": 1.51},
        image_level={"epsilon_high": 9.5, "explanation": "used"},
    )
    of_records = {"unit": "record", "observer": "the server"}
    with_accounts(
        folder,
        runs_of(private[2]),
        proven=of_records
        | {"epsilon_high": "inf", "status": "void", "explanation": REASON},
    )
    for run in runs_of(private[2]):  # the account of its one unit
        path = folder / "runs" / run / "privacy.json"
        account = json.loads(path.read_text(encoding="utf-8")) | {"unit": "record"}
        path.write_text(json.dumps(account), encoding="utf-8")
    audit_path = folder / "runs" / runs_of(private[2])[0] / "audit.json"
    audit_path.write_text(
        json.dumps(json.loads(audit_path.read_text(encoding="utf-8")) | of_records),
        encoding="utf-8",
    )
    items = []
    for name in SITE_ITEMS:
        item = plain_item(plan.items["dp-fedmeta", name].describe(plan.audited_runs()))
        path = (
            folder
            / ("tables" if item.kind == "table" else "figures")
            / "dp-fedmeta"
            / name
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        if item.kind == "table":
            path = path.with_suffix(".csv")
            table = tables.read(item, folder, published)
            path.write_text(formats.csv_text(tables.tidy(table)), encoding="utf-8")
            text = tables.listing(table).markdown("it")
            path.with_suffix(".md").write_text(text, encoding="utf-8")
        else:
            path = path.with_suffix(".png")
            drawing, drawn = figures.make(item, folder, published)
            drawing.savefig(path)
            path.with_suffix(".csv").write_text(
                formats.csv_text(drawn), encoding="utf-8"
            )
        relative = path.relative_to(folder).as_posix()
        items.append(
            page.Product(
                path=relative, command=f"snakemake results/{relative}", item=item
            )
        )
    shutil.copy(
        folder / "figures" / "dp-fedmeta" / "frontier.csv",
        folder / "tables" / "frontier.csv",
    )
    for name in (
        "tables/answer.csv",
        "tables/privacy.csv",
        "tables/privacy.md",
        "figures/privacy.csv",
    ):
        (folder / name).write_text(
            "what a link leads to, and nobody reads\n", encoding="utf-8"
        )
    shutil.copy(
        folder / "figures" / "dp-fedmeta" / "figure4b.png",
        folder / "figures" / "privacy.png",
    )
    for relative in (
        "tables/answer.csv",
        "tables/privacy.csv",
        "tables/frontier.csv",
        "figures/privacy.png",
    ):
        items.append(
            page.Product(
                path=relative, command=f"snakemake results/{relative}", item=None
            )
        )
    stand_ins = {"omniglot": "glyphs"}
    shutil.copy(Path(__file__).resolve().parents[3] / "pyproject.toml", folder.parent)
    write_json(
        folder / "provenance.json",
        provenance(folder.parent, "snakemake all", stand_ins=stand_ins),
    )
    papers = {
        name: {key: paper[key] for key in ("title", "source")}
        for name, paper in configuration["experiments"].items()
    }
    datasets = [{"name": "glyphs", "version": "1", "source": "drawn", "licence": "MIT"}]
    arguments = {
        "cells": [
            *(cell for cells in private for cell in cells),
            *(cell for product in items if product.item for cell in product.item.cells),
        ],
        "results": folder,
        "folder": folder,
        "published": published,
        "papers": papers,
        "datasets": datasets,
        "made": "today",
    }
    (folder / "index.html").write_text(page.make(items, **arguments), encoding="utf-8")
    return Site(folder, items, arguments)


@pytest.fixture(scope="session")
def described(plan: Plan) -> Callable[..., Item]:
    """Return a table or figure by name, of DP-FedMeta unless a paper is given."""

    def describe(name: str, paper: str = "dp-fedmeta") -> Item:
        return plain_item(plan.items[paper, name].describe(plan.audited_runs()))

    return describe


@pytest.fixture(scope="session")
def published() -> Path:
    """The published numbers."""
    return Path(__file__).resolve().parents[3] / "config" / "published.csv"
