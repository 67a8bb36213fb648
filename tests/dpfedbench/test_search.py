"""Searches for settings: which combinations are tried, what they declare, and what is
chosen by validation tasks.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.evaluation import evaluate
from dpfedbench.experiments.configuration import Configuration, SearchSpace
from dpfedbench.experiments.expand import make_plan, points
from dpfedbench.experiments.plan import Plan
from dpfedbench.federation.accounts import account_of, account_run
from dpfedbench.results import tables
from dpfedbench.results.curves import read_history
from dpfedbench.results.items import Item
from dpfedbench.results.runs_table import collect_runs
from dpsum.accounting.tuning import Search
from dpsum.ledger import read_ledger
from tests.dpfedbench.federation.test_text import OWN, RUN, run_of, trained
from tests.dpfedbench.results.conftest import write_run

PUBLISHED = Path(__file__).parents[2] / "config" / "published.csv"
SPACE = {
    "values": {
        "server.rate": [1.0, 2.0, 4.0],
        "participation": [{"cohort": 2, "rounds": 4}, {"cohort": 4, "rounds": 2}],
    }
}


def configuration(space: Any = SPACE, **run: Any) -> dict[str, Any]:
    general = {key: value for key, value in RUN.items() if key != "seed"}
    return {
        "seeds": [0, 1],
        "run": general | {"validation": {"every": 2, "tasks": 1}} | run,
        "experiments": {
            "mine": {
                "title": "mine",
                "tasks": {"text": {}},
                "tables": {
                    "table3": {
                        "title": "a search",
                        "tasks": ["text"],
                        "series": {
                            "dp-reptile": {
                                "method": "dp-reptile",
                                "run": OWN["dp-reptile"],
                                "search": space,
                            }
                        },
                    }
                },
            }
        },
    }


def plan(found: dict[str, Any]) -> Plan:
    return make_plan(Configuration.read(found))


def test_a_grid_is_every_combination_and_a_draw_is_a_part_of_it() -> None:
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
    # A space far too large to be listed is drawn from all the same.
    wide = SearchSpace.read(
        {"values": {f"k{index}": list(range(10)) for index in range(15)}, "runs": 3}
    )
    assert len(points(wide, "x")) == 3


TWO = {"values": {"server.rate": [1.0, 2.0]}, "runs": 3}


@pytest.mark.parametrize(
    ("space", "run", "part"),
    [
        (TWO, {}, "runs is 3, but there are 2 combinations"),
        ({"values": {"server.rat": [1.0]}}, {}, "server.rat"),
        (SPACE, {"validation": {"every": 0}}, "set validation.every above 0"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused_in_one_line(
    space: Any, run: Any, part: str
) -> None:
    with pytest.raises(BenchError) as caught:
        plan(configuration(space, **run))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_each_run_of_a_search_declares_all_of_it() -> None:
    """Six combinations on two seeds are twelve runs that were compared, on whatever the
    validation tasks are.
    """
    found = plan(configuration())
    (item,) = found.items.values()
    assert len(item.cells) == 6
    assert len(found.runs) == 12
    assert {cell.variant for cell in item.cells} >= {
        "server.rate 4.0, participation.cohort 4, participation.rounds 2"
    }
    assert found.searches == {
        folder: {"runs": 12, "data": "private"} for folder in found.runs
    }
    assert Search.of(found.searches[next(iter(found.runs))]) == Search(
        runs=12, data="private", number="fixed"
    )
    plain = configuration({"values": {"server.rate": [1.0, 2.0]}})
    plain["experiments"]["mine"]["tables"]["table3"]["series"]["dp-reptile"] |= {
        "method": "reptile",
        "run": {},
    }
    assert {declared["data"] for declared in plan(plain).searches.values()} == {
        "public"
    }
    text = RUN["task"] | {"text": RUN["task"]["text"] | {"vocabulary": "private"}}
    private = plan(
        configuration(task=text, validation={"every": 2, "tasks": 1, "public": False})
    )
    assert {declared["data"] for declared in private.searches.values()} == {"private"}
    assert {run.streams for run in private.runs.values()} == {"own"}
    assert set(private.searches) == set(private.runs)


def test_the_best_on_validation_tasks_is_chosen_whatever_the_test_says(
    tmp_path: Path,
) -> None:
    found = plan(configuration())
    (item,) = found.items.values()
    for place, cell in enumerate(item.cells):
        for run in cell.runs:
            write_run(tmp_path, run, [90.0 - 10 * place, 80.0 - 10 * place])
            training = tmp_path / "runs" / run.folder / "training.json"
            accuracy = (
                0.30 if place == 3 else 0.20 + run.seed / 100
            )  # a share, as training writes it
            written = json.loads(training.read_text()) | {
                "members": [{"round": 4, "accuracy": accuracy}]
            }
            training.write_text(json.dumps(written))
    described = Item(**item.describe())
    table = tables.read(described, tmp_path, PUBLISHED)
    assert table.rows["chosen"].tolist() == [
        False,
        False,
        False,
        True,
        False,
        False,
    ]
    tidy = tables.tidy(table)
    assert tidy["value"].tolist() == pytest.approx([20.5, 20.5, 20.5, 30.0, 20.5, 20.5])
    assert tidy["chosen"].sum() == 1
    text = tables.listing(table).markdown("it")
    assert "searched with at most 12 runs" in text
    assert "55.0" in text
    assert "85.0" not in text
    assert "75.0" not in text
    training.write_text(
        json.dumps({key: value for key, value in written.items() if key != "members"})
    )
    with pytest.raises(BenchError, match="shows validation_accuracy, which runs of"):
        tables.read(described, tmp_path, PUBLISHED)


def test_the_account_of_a_run_of_a_search_says_so(tmp_path: Path) -> None:
    found = plan(configuration())
    (item,) = found.items.values()
    run = item.cells[0].runs[0]
    out = trained(tmp_path, run)
    released = read_ledger(out / "ledger.jsonl")
    public = account_of(run, released, search=Search(runs=12, data="public")).profiles[
        "tuning"
    ]
    assert (
        "a search of 12 runs, all of them counted, trained on public data: nothing is"
        " added" in public.explanation
    )
    paid = account_of(
        run, released, search=Search.of(found.searches[run.folder])
    ).profiles["tuning"]
    assert paid.status == "proved"
    assert "trained on private data" in paid.explanation
    assert (
        paid.epsilon_high
        > public.epsilon_high
        == account_of(run, released).profiles["proven"].epsilon_high
    )


def test_shares_are_taken_seed_by_seed(tmp_path: Path) -> None:
    """40 of 50 and 30 of 60 are 80 and 50 %: 65 in the mean, where the means' share
    would be 63.6.
    """
    found = configuration(None)
    table = found["experiments"]["mine"]["tables"]["table3"]
    table |= {
        "share_of": "reptile",
        "series": {"reptile": {"method": "reptile"}, **table["series"]},
    }
    (item,) = plan(found).items.values()
    for cell, accuracies in zip(item.cells, ((50.0, 60.0), (40.0, 30.0)), strict=True):
        for run, accuracy in zip(cell.runs, accuracies, strict=True):
            write_run(tmp_path, run, [accuracy, accuracy])
    read = tables.read(Item(**item.describe()), tmp_path, PUBLISHED)
    assert read.rows["value"].tolist() == [100.0, 65.0]
    (first, _) = tables.listing(read).rows
    assert "accuracy, % of that of Non-private Reptile (95 % interval)" in first
    table["share_of"] = "nobody"
    with pytest.raises(BenchError, match="there is no series 'nobody'"):
        plan(found)


def test_what_a_run_says_of_its_validation_is_read_in_percent(tmp_path: Path) -> None:
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
    """Six settings of training, then three rates of refining."""
    found = configuration()
    tables = found["experiments"]["mine"]["tables"]
    series = tables["table3"]["series"]["dp-reptile"]
    refining = {"values": {"evaluation.rate": [0.1, 0.2, 0.3]}, "follows": follows}
    second = {"dp-reptile": {**series, "search": refining}}
    tables["refining"] = {**tables["table3"], "series": second}
    return found


def test_second_step_of_a_search_declares_the_runs_of_both() -> None:
    """Six and three settings on two seeds: 12 runs in the first step, 18 in both."""
    found = plan(two_steps())
    counts = {
        name: {found.searches[folder]["runs"] for folder in item.runs}
        for (_, name), item in found.items.items()
    }
    assert counts == {"table3": {12}, "refining": {18}}


def test_second_step_of_an_unknown_search_is_refused() -> None:
    with pytest.raises(BenchError, match=r"follows.*table4"):
        plan(two_steps("table4"))
