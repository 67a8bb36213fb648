"""Searches for settings: combinations, declared numbers of runs, and the chosen one."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.evaluation import evaluate
from dpfedbench.experiments.configuration import Configuration, SearchSpace
from dpfedbench.experiments.expand import make_plan, points
from dpfedbench.experiments.plan import Plan
from dpfedbench.results import tables
from dpfedbench.results.items import Item
from dpfedbench.results.runs_table import collect_runs
from dpfedbench.training.accounts import account_of, account_run
from dpfedbench.training.history import read_history
from dpsum.accounting.tuning import Search
from dpsum.ledger import read_ledger
from tests.dpfedbench.results.conftest import write_run
from tests.dpfedbench.training.test_text import OWN, RUN, run_of, trained

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
    table = {
        "title": "a search",
        "tasks": ["text"],
        "series": {"dp-reptile": series},
    }
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
    grid = points(space, "x")
    assert len(grid) == 6
    assert {"a": {"b": 3}, "c": {"d": 2}} in grid
    drawn = points(space.replace(runs=4), "x")
    assert len(drawn) == 4
    assert all(point in grid for point in drawn)
    assert len({json.dumps(point) for point in drawn}) == 4
    assert drawn == points(space.replace(runs=4), "x")
    assert any(
        points(space.replace(runs=4, seed=seed), "x") != drawn for seed in range(1, 5)
    )
    assert points(None, "x") == [{}]
    # A space that is too large for a list of its points.
    values = {f"k{index}": list(range(10)) for index in range(15)}
    wide = SearchSpace.read({"values": values, "runs": 3})
    assert len(points(wide, "x")) == 3


TWO = {"values": {"server.rate": [1.0, 2.0]}, "runs": 3}


@pytest.mark.parametrize(
    ("space", "run", "message"),
    [
        (TWO, {}, "runs is 3, but there are 2 combinations"),
        ({"values": {"server.rat": [1.0]}}, {}, "server.rat"),
        (SPACE, {"validation": {"every": 0}}, "set validation.every above 0"),
    ],
)
def test_search_space_with_a_fault_is_refused(
    space: Any, run: Any, message: str
) -> None:
    with pytest.raises(BenchError) as caught:
        plan(configuration(space, **run))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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
    search = plan(private)
    assert {run.streams for run in search.runs.values()} == {"own"}
    assert set(search.searches) == set(search.runs)


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
    text = tables.listing(table).markdown("it")
    assert "searched with at most 12 runs" in text
    assert "55.0" in text
    assert "85.0" not in text
    assert "75.0" not in text
    del values["members"]
    training.write_text(json.dumps(values))
    with pytest.raises(BenchError, match="shows validation_accuracy, which runs of"):
        tables.read(described, tmp_path, PUBLISHED)


def test_account_of_a_run_includes_its_search(tmp_path: Path) -> None:
    search = plan(configuration())
    (item,) = search.items.values()
    run = item.cells[0].runs[0]
    out = trained(tmp_path, run)
    releases = read_ledger(out / "ledger.jsonl")

    def tuning(declared: Search) -> Any:
        return account_of(run, releases, search=declared).profiles["tuning"]

    public = tuning(Search(runs=12, data="public"))
    explanation = "a search of 12 runs, all of them counted, trained on public data"
    assert f"{explanation}: nothing is added" in public.explanation
    proven = account_of(run, releases).profiles["proven"]
    assert public.epsilon_high == proven.epsilon_high
    private = tuning(Search.of(search.searches[run.folder]))
    assert private.status == "proved"
    assert "trained on private data" in private.explanation
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
    plain, private = item.cells
    for cell, accuracies in ((plain, (50.0, 60.0)), (private, (40.0, 30.0))):
        for run, accuracy in zip(cell.runs, accuracies, strict=True):
            write_run(tmp_path, run, [accuracy, accuracy])
    read = tables.read(Item(**item.describe()), tmp_path, PUBLISHED)
    assert read.rows["value"].tolist() == [100.0, 65.0]
    first, _ = tables.listing(read).rows
    assert "accuracy, % of that of Non-private Reptile (95 % interval)" in first
    table["share_of"] = "nobody"
    with pytest.raises(BenchError, match="there is no series 'nobody'"):
        plan(values)


def test_validation_accuracy_of_a_run_is_in_percent(tmp_path: Path) -> None:
    run = run_of(
        "reptile",
        validation={"every": 2, "tasks": 1},
        server={"kind": "step", "rate": 8.0, "optimizer": "sgd"},
    )
    out = trained(tmp_path, run)
    evaluate(
        run,
        data_dir=tmp_path / "data",
        model_path=out / "model.safetensors",
        out_path=out / "metrics.json",
    )
    account_run(run, out, out / "privacy.json", clients_dir=tmp_path / "clients")
    shutil.copytree(out, tmp_path / "results" / "runs" / run.folder)
    best = read_history(out / "history.csv")["validation_accuracy"].max()
    settings = tmp_path / "results" / "runs" / run.folder / "config.yaml"
    settings.write_text(run.to_yaml(), encoding="utf-8")
    runs = collect_runs(tmp_path / "results", [run.folder])
    assert runs["validation_accuracy"][0] == pytest.approx(best)
    assert best > 1


def two_steps(follows: str = "table3") -> dict[str, Any]:
    """Return a search of six settings of training, then of three rates of refining."""
    values = configuration()
    tables = values["experiments"]["mine"]["tables"]
    series = tables["table3"]["series"]["dp-reptile"]
    refining = {"values": {"evaluation.rate": [0.1, 0.2, 0.3]}, "follows": follows}
    second = {"dp-reptile": {**series, "search": refining}}
    tables["refining"] = {**tables["table3"], "series": second}
    return values


def test_search_of_two_steps_declares_the_runs_of_both() -> None:
    """Six and three settings on two seeds: 12 runs in the first step, 18 in both."""
    search = plan(two_steps())
    counts = {
        name: {search.searches[folder]["runs"] for folder in item.runs}
        for (_, name), item in search.items.items()
    }
    assert counts == {"table3": {12}, "refining": {18}}


def test_search_that_follows_an_unknown_search_is_refused() -> None:
    with pytest.raises(BenchError, match=r"follows.*table4"):
        plan(two_steps("table4"))
