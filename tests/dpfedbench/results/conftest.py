"""Finished runs, made by hand: what reporting reads, without training anything."""

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpfedbench.evaluation.intervals import mean_interval
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from dpfedbench.files import read_json, write_json, write_text
from dpfedbench.results import formats, page, tables
from dpfedbench.results.items import Item
from dpsum.ledger import Release
from tests.shipped import ROOT, parsed
from workflow_jobs.provenance import provenance


def changed_cells(item, **values):
    """Return the item with other values in all its cells."""
    return dataclasses.replace(item, cells=with_values(item.cells, **values))


def with_values(cells, **values):
    return [{**cell, **values} for cell in cells]


def runs_of(cells, number=None):
    """Return the runs of some cells, or of the cell with a number."""
    return [cell["run"] for cell in cells if number is None or cell["cell"] == number]


def private_configurations(plan, paper):
    """Return the cells of each private configuration, in the privacy table's order."""
    records = plan.cell_records(paper, plan.audited_runs(paper))
    by_folder = {}
    for cell in sorted(records, key=lambda cell: not cell["kind"].endswith("table")):
        if cell["private"]:
            by_folder.setdefault(str(Path(cell["run"]).parent), []).append(cell)
    return list(by_folder.values())


def name_of(cells):
    return str(cells[0]["variant"] or cells[0]["label"])


def change_json(path, **values):
    write_json(path, read_json(path) | values)


def change_accounts(results, folders, **profiles):
    """Write other values of some profiles into accounts."""
    for folder in dict.fromkeys(folders):
        path = results / "runs" / folder / "privacy.json"
        account = read_json(path)
        for name, values in profiles.items():
            account["profiles"][name] |= values
        write_json(path, account)


def change_audit(results, cells, **values):
    change_json(results / "runs" / cells[0]["audited_run"] / "audit.json", **values)


def make_release(**values):
    """Return a Gaussian release of one pass."""
    defaults = {
        "round": 0,
        "name": "sum",
        "mechanism": "gaussian",
        "unit": "client",
        "adjacency": "zero-out",
        "observer": "everyone",
        "noise_multiplier": 1.0,
        "threshold": 1.0,
        "sensitivity": 1.0,
        "noise_std": 1.0,
        "dimension": 1,
        "denominator": 1.0,
        "sampler": {"kind": "one-pass", "clients": 4, "cohort": 2, "rounds": 2},
        "noise_stream": "0",
        "reason": "",
        "counted_by_paper": True,
        "data_dependent_threshold": False,
    }
    return Release(**defaults | values)


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


def make_profile(name, epsilon, **values):
    return {
        "epsilon_low": epsilon,
        "epsilon_high": epsilon,
        "unit": "client",
        "status": "proved",
        "adjacency": "zero-out",
        "observer": "everyone",
        "explanation": f"what {name} rests on",
        **values,
    }


def write_files(results, run, config, **contents):
    """Write a run's configuration and JSON files into its folder."""
    folder = results / "runs" / run
    write_text(folder / "config.yaml", config)
    for name, content in contents.items():
        write_json(folder / f"{name}.json", content)
    return folder


def write_run(results, run, accuracies):
    """Write a run's folder with the accuracy of each task, in percent.

    At noise z, claimed ε is 1.5 / z, proven ε 4.887 / z and audited ε 0.8 / z.
    """
    values = run.plain()
    z = 1.0
    profiles = {}
    if run.private:
        z = values.get("noise", {}).get("multiplier") or 1.0
        for name, epsilon in (("claimed", 1.5 / z), ("proven", 4.887 / z)):
            profiles[name] = make_profile(name, epsilon, delta=run.delta)
    account = {
        "delta": run.delta,
        "unit": "client" if profiles else None,
        "profiles": profiles,
        "noise_multiplier": z,
        "reasons": {} if profiles else {"proven": "no release claims privacy"},
    }
    audit = {
        "epsilon": 0.8 / z,
        "epsilon_ideal": 0.9 / z,
        "method": "f-DP by ranks",
        "confidence": 0.95,
        "reason": "",
        "unit": "client",
        "observer": "everyone",
    }
    if run.own_delta and run.server_sum.private:
        of_record = {"unit": "record", "observer": "the server"}
        of_records = {name: profile | of_record for name, profile in profiles.items()}
        own = {"unit": "record", "profiles": of_records, "delta": run.own_delta}
        account["also"] = [account | own]
        audit["also"] = [audit | of_record]
    interval = mean_interval(accuracies)
    metrics = {
        "accuracy": interval.mean,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "tasks": len(accuracies),
        "per_task": accuracies,
    }
    participation = values.get("participation") or {"rounds": 0, "cohort": 0}
    training = {
        "rounds_run": participation["rounds"],
        "seconds": 30.0,
        "milliseconds_per_client": 10.0 + run.seed,
        "notices": list(run.notices),
        "ledger": {"lines": 0, "head": ""},
    }
    files = {"privacy": account, "audit": audit, "metrics": metrics}
    files["training"] = training
    folder = write_files(results, run.folder, run.to_yaml(), **files)
    write_text(folder / "ledger.jsonl", "")
    make_history(run, **participation).to_csv(folder / "history.csv", index=False)


def make_history(run, rounds, cohort, **_):
    numbers = np.arange(1, rounds + 1)
    history = pd.DataFrame({"round": numbers, "clients": cohort, "seconds": 1.0})
    decay = 2.0 * np.exp(-numbers / 15) + 0.3 + 0.02 * run.seed
    if run.private:
        history["threshold"] = np.minimum.accumulate(decay) * 0.5
        history["released_norm"] = 100 * decay
    else:
        history["norm_q10"] = decay * 0.6
        history["norm_q50"] = decay
        history["norm_q90"] = decay * 1.7
    return history


@pytest.fixture(scope="session")
def configuration():
    """The default configuration, as Snakemake merges it, of four experiments. Table 2
    has the rows of one data set.
    """
    names = ("adap-dp-fl", "dp-fedmeta", "dp-maml", "frontier")
    config = ROOT / "config"
    experiments = [config / "experiments" / f"{name}.yaml" for name in names]
    merged = overlaid(*map(parsed, [config / "config.yaml", *experiments]))
    tables = merged["experiments"]["dp-fedmeta"]["tables"]
    tables["table2"]["tasks"] = ["omniglot-1shot", "omniglot-5shot"]
    return merged


@pytest.fixture(scope="session")
def plan(configuration):
    return make_plan(Configuration.read(configuration))


@pytest.fixture(scope="session")
def results(tmp_path_factory, plan):
    """All few-shot runs of the default configuration, finished."""
    folder = tmp_path_factory.mktemp("results")
    for run in plan.runs.values():
        if run.client_data == "records":
            continue
        level = LEVELS[run.method] + 1.5 * run.seed
        noise, clipping = (run.plain().get(key, {}) for key in ("noise", "clipping"))
        if noise.get("multiplier"):
            level -= 6 * math.log2(noise["multiplier"])
            level -= abs(clipping.get("percentile", 50) - 80) / 8
        if clipping.get("kind") == "constant":
            level -= 5
        spread = np.random.default_rng(run.seed).normal(0, 8, 40)
        write_run(folder, run, np.clip(level + spread, 0, 100).tolist())
    return folder


@pytest.fixture
def results_to_change(results, tmp_path):
    shutil.copytree(results, tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture(scope="session")
def published():
    return ROOT / "config" / "published.csv"


@pytest.fixture(scope="session")
def described(plan):
    """Return a table or figure by name, of DP-FedMeta unless a paper is given."""

    def describe(name, paper="dp-fedmeta"):
        description = plan.items[paper, name].describe(plan.audited_runs())
        return Item(**json.loads(json.dumps(description)))  # as from Snakemake

    return describe


@dataclasses.dataclass(frozen=True)
class Site:
    """A results folder with its page, and what the page was made from."""

    folder: Path
    products: list[page.Product]
    arguments: dict[str, Any]

    @property
    def page(self):
        return self.folder / "index.html"


@pytest.fixture(scope="session")
def site(tmp_path_factory, plan, results, published, configuration, described):
    """A page of Table 2 and four private configurations: with one ε, with a range,
    without a finite ε, and one whose claim is void.
    """
    folder = tmp_path_factory.mktemp("site") / "results"
    shutil.copytree(results, folder)
    of_paper = private_configurations(plan, "dp-fedmeta")
    exact, ranged, infinite, *_ = [
        cells
        for cells in of_paper
        if any(cell["kind"] == "table" and cell["repairs"] for cell in cells)
    ]
    void = next(
        cells
        for cells in of_paper
        if name_of(cells) == "dp-agr" and cells[0]["task"] == exact[0]["task"]
    )
    shown = [
        *with_values(exact, variant="one-pass"),
        *with_values(ranged, variant="Poisson"),
        *with_values(infinite, variant="C <b>from</b> raw norms"),
        *void,
    ]
    proven_range = {"epsilon_low": 1.49, "epsilon_high": 1.51}
    change_accounts(folder, runs_of(ranged), proven=proven_range)
    no_proof = {"epsilon_high": "inf", "status": "void"}
    change_accounts(folder, runs_of(infinite), proven=no_proof)
    change_accounts(folder, runs_of(void), claimed={"status": "void"})
    item = described("table2")
    table = tables.tidy(tables.read(item, folder, published))
    write_text(folder / "tables/dp-fedmeta/table2.csv", formats.csv_text(table))
    for name in ("answer", "privacy"):
        write_text(folder / f"tables/{name}.csv", "a link leads here\n")
    path = "tables/dp-fedmeta/table2.csv"
    product = page.Product(path=path, command=f"snakemake results/{path}", item=item)
    shutil.copy(ROOT / "pyproject.toml", folder.parent)
    stand_ins = {"omniglot": "glyphs"}
    made_by = provenance(folder.parent, "snakemake all", stand_ins=stand_ins)
    write_json(folder / "provenance.json", made_by)
    papers = {
        name: {key: paper[key] for key in ("title", "source")}
        for name, paper in configuration["experiments"].items()
    }
    datasets = [{"name": "glyphs", "version": "1", "source": "drawn", "licence": "MIT"}]
    arguments = {
        "cells": [*shown, *item.cells, *described("figure4b").cells],
        "results": folder,
        "folder": folder,
        "published": published,
        "papers": papers,
        "datasets": datasets,
        "made": "today",
        "provenance": folder / "provenance.json",
    }
    site = Site(folder, [product], arguments)
    write_text(site.page, page.make(site.products, **arguments))
    return site
