"""Searches for settings: combinations, declared numbers of runs, and the chosen one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfedbench.config.merge import merge
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, SearchSpace
from dpfedbench.experiments.expand import make_plan, points
from dpfedbench.experiments.plan import Plan
from dpfedbench.files import read_json, write_json
from dpfedbench.results import tables
from dpfedbench.results.items import Item
from dpfedbench.training.accounts import account_of
from dpsum.accounting.tuning import Search
from dpsum.ledger import read_ledger
from tests.dpfedbench.results.conftest import write_run
from tests.dpfedbench.training.test_text import OWN, RUN, trained

PUBLISHED = Path(__file__).parents[2] / "config" / "published.csv"
SPACE = {
    "values": {
        "server.rate": [1.0, 2.0, 4.0],
        "participation": [{"cohort": 2, "rounds": 4}, {"cohort": 4, "rounds": 2}],
    }
}
VALIDATION = {"every": 2, "tasks": 1}
SGD = {"optimizer": "sgd", "batch": None}
"""Test of a text; the class of Reptile states that of Omniglot."""


def make_table(space: Any = SPACE, **changes: Any) -> dict[str, Any]:
    """Return a table of one series, with changed keys of the series."""
    series = {"method": "dp-reptile", "run": OWN["dp-reptile"], "search": space}
    series |= changes
    return {"title": "a search", "tasks": ["text"], "series": {"dp-reptile": series}}


def plan(table: dict[str, Any], run: Any = None, **further: Any) -> tuple[Plan, Any]:
    """Return the plan of a table and of further ones, and the first table's item."""
    general = {key: value for key, value in RUN.items() if key != "seed"}
    experiment = {"title": "mine", "tasks": {"text": {}}, "tables": {"first": table}}
    experiment["tables"] |= further
    values = {
        "seeds": [0, 1],
        "run": merge(general, {"validation": VALIDATION, "evaluation": SGD}, run),
        "experiments": {"mine": experiment},
    }
    search = make_plan(Configuration.read(values))
    return search, search.items["mine", "first"]


def test_search_points_are_every_combination_or_a_draw_of_them() -> None:
    space = SearchSpace.read({"values": {"a.b": [1, 2, 3], "c": [{"d": 1}, {"d": 2}]}})
    grid = points(space)
    assert len(grid) == 6
    assert {"a": {"b": 3}, "c": {"d": 2}} in grid
    drawn = points(space.replace(runs=4))
    assert len({json.dumps(point) for point in drawn}) == len(drawn) == 4
    assert all(point in grid for point in drawn)
    assert points(space.replace(runs=4, seed=1)) != drawn
    assert points(None) == [{}]
    # A space that is too large for a list of its points.
    values = {f"k{index}": list(range(10)) for index in range(15)}
    wide = SearchSpace.read({"values": values, "runs": 3})
    assert len(points(wide)) == 3


def test_search_is_declared_by_each_of_its_runs() -> None:
    """Six combinations on two seeds are twelve compared runs."""
    search, item = plan(make_table())
    assert (len(item.cells), len(search.runs)) == (6, 12)
    variant = "server.rate 4.0, participation.cohort 4, participation.rounds 2"
    assert variant in {cell.variant for cell in item.cells}
    declared = {"runs": 12, "data": "private"}
    assert search.searches == dict.fromkeys(search.runs, declared)
    assert Search.of(declared) == Search(runs=12, data="private", number="fixed")


def test_search_of_two_steps_declares_the_runs_of_both() -> None:
    """Six and three settings on two seeds: 12 runs in the first step, 18 in both."""
    rates = {"values": {"evaluation.rate": [0.1, 0.2, 0.3]}, "follows": "first"}
    search, _ = plan(make_table(), refining=make_table(rates))
    counts = {
        name: {search.searches[folder]["runs"] for folder in item.runs}
        for (_, name), item in search.items.items()
    }
    assert counts == {"first": {12}, "refining": {18}}


def test_search_declares_whether_its_data_are_private() -> None:
    """Runs without privacy train on public data; private validation tasks, or a private
    vocabulary, make the search private.
    """
    rates = {"values": {"server.rate": [1.0, 2.0]}}
    public, _ = plan(make_table(rates, method="reptile", run={}))
    text = RUN["task"]["text"] | {"vocabulary": "private"}
    changes = {
        "task": RUN["task"] | {"text": text},
        "validation": VALIDATION | {"public": False},
    }
    private, _ = plan(make_table(), changes)
    for search, data in ((public, "public"), (private, "private")):
        assert {declared["data"] for declared in search.searches.values()} == {data}
    assert {run.streams for run in private.runs.values()} == {"own"}


def test_search_without_validation_is_refused() -> None:
    with pytest.raises(BenchError, match=r"set validation\.every above 0"):
        plan(make_table(), {"validation": {"every": 0}})


def test_search_chooses_by_validation_tasks_alone(tmp_path: Path) -> None:
    _, item = plan(make_table())
    for index, cell in enumerate(item.cells):
        for run in cell.runs:
            write_run(tmp_path, run, [90.0 - 10 * index, 80.0 - 10 * index])
            training = tmp_path / "runs" / run.folder / "training.json"
            # A share, as training writes it.
            accuracy = 0.30 if index == 3 else 0.20 + run.seed / 100
            members = [{"round": 4, "accuracy": accuracy}]
            write_json(training, read_json(training) | {"members": members})
    table = tables.read(Item(**item.describe({})), tmp_path, PUBLISHED)
    assert np.flatnonzero(table.rows["chosen"]).tolist() == [3]
    assert len(table.rows) == 6
    tidy = tables.tidy(table)
    assert tidy["value"].tolist() == pytest.approx([20.5, 20.5, 20.5, 30.0, 20.5, 20.5])
    assert tidy["chosen"].sum() == 1


def test_account_of_a_run_includes_its_search(tmp_path: Path) -> None:
    search, item = plan(make_table())
    run = item.cells[0].runs[0]
    out = trained(tmp_path, run)
    releases = read_ledger(out / "ledger.jsonl")

    def tuning(declared: Search) -> Any:
        return account_of(run, releases, search=declared).profiles["tuning"]

    public = tuning(Search(runs=12, data="public"))
    proven = account_of(run, releases).profiles["proven"]
    assert public.epsilon_high == proven.epsilon_high
    private = tuning(Search.of(search.searches[run.folder]))
    assert private.status == "proved"
    assert private.epsilon_high > public.epsilon_high


def test_table_takes_shares_seed_by_seed(tmp_path: Path) -> None:
    """40 of 50 and 30 of 60 are 80 % and 50 %, in the mean 65 %.

    The share of the means would be 63.6 %.
    """
    table = make_table(None)
    series = {"reptile": {"method": "reptile"}, **table["series"]}
    _, item = plan(table | {"share_of": "reptile", "series": series})
    for cell, accuracies in zip(item.cells, [(50.0, 60.0), (40.0, 30.0)], strict=True):
        for run, accuracy in zip(cell.runs, accuracies, strict=True):
            write_run(tmp_path, run, [accuracy, accuracy])
    read = tables.read(Item(**item.describe({})), tmp_path, PUBLISHED)
    assert read.rows["value"].tolist() == [100.0, 65.0]
