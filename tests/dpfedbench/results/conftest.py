"""Finished runs, made by hand: what reporting reads, without training anything."""

import dataclasses
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dpfedbench.breaches import notices_of
from dpfedbench.evaluation.intervals import mean_interval
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.planned import Planned
from dpfedbench.files import read_json, write_json, write_text
from dpfedbench.results import formats, page, tables
from dpfedbench.results.items import Item
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
    account = {"delta": run.delta, "unit": None, "profiles": {}, "reasons": {}}
    z = 1.0
    if run.private:
        z = values.get("noise", {}).get("multiplier") or 1.0
        account |= {"unit": "client", "noise_multiplier": z}
        account["profiles"] = {
            name: make_profile(name, epsilon / z, delta=run.delta)
            for name, epsilon in (("claimed", 1.5), ("proven", 4.887))
        }
    audit = {
        "epsilon": 0.8 / z,
        "epsilon_ideal": 0.9 / z,
        "epsilon_proven": math.inf,
        "another_mechanism": False,
        "method": "f-DP by ranks",
        "status": None,
        "reason": None,
        "confidence": 0.95,
        "chance": 0.05,
        "unit": "client",
        "observer": "everyone",
    }
    if run.own_delta and run.server_sum.private:
        record = {"unit": "record", "observer": "the server"}
        profiles = {
            name: profile | record for name, profile in account["profiles"].items()
        }
        record_account = {
            "unit": "record",
            "profiles": profiles,
            "delta": run.own_delta,
        }
        account["also"] = [account | record_account]
        audit["also"] = [audit | record]
    interval = mean_interval(accuracies)
    metrics = {
        "accuracy": interval.mean,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "per_task": accuracies,
    }
    rounds = (values.get("participation") or {}).get("rounds", 0)
    training = {
        "rounds_run": rounds,
        "seconds": 30.0,
        "milliseconds_per_client": 10.0 + run.seed,
        "noise_multiplier": z if run.private else None,
        "notices": list(notices_of(run)),
        "ledger": {"lines": 0, "head": ""},
    }
    files = {"privacy": account, "audit": audit, "metrics": metrics}
    files["training"] = training
    folder = write_files(results, run.folder, run.to_yaml(), **files)
    write_text(folder / "ledger.jsonl", "")
    numbers = np.arange(1, rounds + 1)
    decay = 2.0 * np.exp(-numbers / 15) + 0.3 + 0.02 * run.seed
    columns = {"round": numbers, "clients": 20, "seconds": 1.0}
    if run.private:
        columns |= {"threshold": 0.5 * decay, "released_norm": 100 * decay}
    else:
        columns |= {"norm_q10": 0.6 * decay, "norm_q50": decay, "norm_q90": 1.7 * decay}
    pd.DataFrame(columns).to_csv(folder / "history.csv", index=False)


@pytest.fixture(scope="session")
def configuration():
    """The default configuration, as Snakemake merges it, of four experiments. Table 2
    has the rows of one data set.
    """
    names = ("adap-dp-fl", "dp-fedmeta", "dp-maml", "frontier")
    config = ROOT / "config"
    experiments = [config / "experiments" / f"{name}.yaml" for name in names]
    small = parsed(config / "small.yaml")
    for name in small["experiments"].keys() - set(names):
        del small["experiments"][name]
    merged = overlaid(*map(parsed, [config / "config.yaml", *experiments]), small)
    tables = merged["experiments"]["dp-fedmeta"]["tables"]
    tables["table2"]["tasks"] = ["omniglot-1shot", "omniglot-5shot"]
    return merged


@pytest.fixture(scope="session")
def plan(configuration):
    return make_plan(Configuration.read(configuration))


@pytest.fixture(scope="session")
def planned(configuration, plan):
    return Planned(Configuration.read(configuration), plan)


@pytest.fixture(scope="session")
def entries(planned):
    """The cells of each private configuration of few-shot clients of DP-FedMeta, in the
    privacy table's order.
    """
    records = planned.cell_records("dp-fedmeta")
    by_folder = {}
    for cell in sorted(records, key=lambda cell: not cell["kind"].endswith("table")):
        if cell["private"] and cell["method"] != "dp-transfer":
            by_folder.setdefault(str(Path(cell["run"]).parent), []).append(cell)
    return list(by_folder.values())


@pytest.fixture(scope="session")
def results(tmp_path_factory, plan):
    """All few-shot runs of the default configuration, finished with drawn accuracies."""
    folder = tmp_path_factory.mktemp("results")
    for run in plan.runs.values():
        if run.client_data != "records":
            mean = np.random.default_rng(int(run.key, 16)).uniform(40, 90) + run.seed
            drawn = np.random.default_rng(run.seed).normal(mean, 8, 40)
            write_run(folder, run, np.clip(drawn, 0, 100).tolist())
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


@pytest.fixture(scope="session")
def site(tmp_path_factory, results, published, configuration, described, entries):
    """A page of Table 2 and four private configurations: with one ε, with a range,
    without a finite ε, and one whose claim is void; and what the page was made from.
    """
    folder = tmp_path_factory.mktemp("site") / "results"
    shutil.copytree(results, folder)
    void, *_ = entries
    exact, ranged, infinite, *_ = (entry for entry in entries if entry[0]["repairs"])
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
    path = "tables/dp-fedmeta/table2.csv"
    table = tables.tidy(tables.read(item, folder, published))
    write_text(folder / path, formats.csv_text(table))
    for name in ("answer", "privacy"):
        write_text(folder / f"tables/{name}.csv", "a link leads here\n")
    made_by = provenance(ROOT, "snakemake all", stand_ins={"omniglot": "glyphs"})
    write_json(folder / "provenance.json", made_by)
    products = [page.Product(path=path, command="snakemake all", item=item)]
    arguments = {
        "cells": [*shown, *item.cells, *described("figure4b").cells],
        "results": folder,
        "folder": folder,
        "page_folder": folder,
        "published": published,
        "papers": configuration["experiments"],
        "made": "today",
        "provenance": folder / "provenance.json",
    }
    text = page.make(products, **arguments)
    write_text(folder / "index.html", text)
    return SimpleNamespace(
        folder=folder, text=text, products=products, arguments=arguments
    )
