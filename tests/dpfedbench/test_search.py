"""Searches for settings: combinations, declared numbers of runs, and the chosen one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, SearchSpace
from dpfedbench.experiments.expand import make_plan, points
from dpfedbench.experiments.plan import Plan
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


def configuration(space: Any = SPACE, **run: Any) -> dict[str, Any]:
    general = {key: value for key, value in RUN.items() if key != "seed"}
    series = {"method": "dp-reptile", "run": OWN["dp-reptile"], "search": space}
    table = {"title": "a search", "tasks": ["text"], "series": {"dp-reptile": series}}
    experiment = {"title": "mine", "tasks": {"text": {}}, "tables": {"table3": table}}
    return {
        "seeds": [0, 1],
        "run": general | {"validation": {"every": 2, "tasks": 1}} | run,
        "experiments": {"mine": experiment},
    }


def plan(values: dict[str, Any]) -> Plan:
    return make_plan(Configuration.read(values))


def test_search_points_are_every_combination_or_a_draw_of_them() -> None:
    space = SearchSpace.read({"values": {"a.b": [1, 2, 3], "c": [{"d": 1}, {"d": 2}]}})
    grid = points(space)
    assert len(grid) == 6
    assert {"a": {"b": 3}, "c": {"d": 2}} in grid
    drawn = points(space.replace(runs=4))
    assert len(drawn) == 4
    assert all(point in grid for point in drawn)
    assert len({json.dumps(point) for point in drawn}) == 4
    assert points(space.replace(runs=4, seed=1)) != drawn
    assert points(None) == [{}]
    # A space that is too large for a list of its points.
    values = {f"k{index}": list(range(10)) for index in range(15)}
    wide = SearchSpace.read({"values": values, "runs": 3})
    assert len(points(wide)) == 3


def test_search_is_declared_by_each_of_its_runs() -> None:
    """Six combinations on two seeds are twelve compared runs."""
    search = plan(configuration())
    (item,) = search.items.values()
    assert len(item.cells) == 6
    assert len(search.runs) == 12
    variant = "server.rate 4.0, participation.cohort 4, participation.rounds 2"
    assert variant in {cell.variant for cell in item.cells}
    declared = {"runs": 12, "data": "private"}
    assert search.searches == dict.fromkeys(search.runs, declared)
    assert Search.of(declared) == Search(runs=12, data="private", number="fixed")


def test_search_of_two_steps_declares_the_runs_of_both() -> None:
    """Six and three settings on two seeds: 12 runs in the first step, 18 in both."""
    values = configuration()
    tables = values["experiments"]["mine"]["tables"]
    refining = {"values": {"evaluation.rate": [0.1, 0.2, 0.3]}, "follows": "table3"}
    series = tables["table3"]["series"]["dp-reptile"] | {"search": refining}
    tables["refining"] = tables["table3"] | {"series": {"dp-reptile": series}}
    search = plan(values)
    counts = {
        name: {search.searches[folder]["runs"] for folder in item.runs}
        for (_, name), item in search.items.items()
    }
    assert counts == {"table3": {12}, "refining": {18}}


def data_of_searches(values: dict[str, Any]) -> set[str]:
    return {declared["data"] for declared in plan(values).searches.values()}


def test_search_declares_whether_its_data_are_private() -> None:
    """Runs without privacy train on public data; private validation tasks, or a private
    vocabulary, make the search private.
    """
    public = configuration({"values": {"server.rate": [1.0, 2.0]}})
    series = public["experiments"]["mine"]["tables"]["table3"]["series"]
    series["dp-reptile"] |= {"method": "reptile", "run": {}}
    assert data_of_searches(public) == {"public"}
    text = RUN["task"]["text"] | {"vocabulary": "private"}
    private = configuration(
        task=RUN["task"] | {"text": text},
        validation={"every": 2, "tasks": 1, "public": False},
    )
    assert data_of_searches(private) == {"private"}
    assert {run.streams for run in plan(private).runs.values()} == {"own"}


def test_search_without_validation_is_refused() -> None:
    with pytest.raises(BenchError, match=r"set validation\.every above 0"):
        plan(configuration(validation={"every": 0}))


def test_search_chooses_by_validation_tasks_alone(tmp_path: Path) -> None:
    search = plan(configuration())
    (item,) = search.items.values()
    for index, cell in enumerate(item.cells):
        for run in cell.runs:
            write_run(tmp_path, run, [90.0 - 10 * index, 80.0 - 10 * index])
            training = tmp_path / "runs" / run.folder / "training.json"
            # A share, as training writes it.
            accuracy = 0.30 if index == 3 else 0.20 + run.seed / 100
            values = json.loads(training.read_text())
            values["members"] = [{"round": 4, "accuracy": accuracy}]
            training.write_text(json.dumps(values))
    described = Item(**item.describe())
    table = tables.read(described, tmp_path, PUBLISHED)
    assert np.flatnonzero(table.rows["chosen"]).tolist() == [3]
    assert len(table.rows) == 6
    tidy = tables.tidy(table)
    assert tidy["value"].tolist() == pytest.approx([20.5, 20.5, 20.5, 30.0, 20.5, 20.5])
    assert tidy["chosen"].sum() == 1


def test_account_of_a_run_includes_its_search(tmp_path: Path) -> None:
    search = plan(configuration())
    (item,) = search.items.values()
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
    values = configuration(None)
    table = values["experiments"]["mine"]["tables"]["table3"]
    series = {"reptile": {"method": "reptile"}, **table["series"]}
    table |= {"share_of": "reptile", "series": series}
    (item,) = plan(values).items.values()
    for cell, accuracies in zip(item.cells, [(50.0, 60.0), (40.0, 30.0)], strict=True):
        for run, accuracy in zip(cell.runs, accuracies, strict=True):
            write_run(tmp_path, run, [accuracy, accuracy])
    read = tables.read(Item(**item.describe()), tmp_path, PUBLISHED)
    assert read.rows["value"].tolist() == [100.0, 65.0]
