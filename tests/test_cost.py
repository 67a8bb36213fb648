"""What a configuration will cost: kinds of work, their rates, and the table made of them."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dpfedbench import cost
from dpfedbench.cost import Calibration, Cost, Rate
from dpfedbench.errors import BenchError
from dpfedbench.experiments.datasets import read_holdings
from dpfedbench.files import write_json
from dpsum.accounting.calibration import rounds_allowed
from tests.test_experiments import CONFIG, configuration, plan

HOLDINGS = read_holdings(CONFIG / "datasets.tsv")
TINY = {"clients": {"count": 40}, "model": {"filters": 4}, "participation": {"cohort": 20, "rounds": 2}}


def runs_of(series: dict[str, Any], dataset: str = "glyphs", run: dict[str, Any] | None = None) -> list[Any]:
    own = {
        "title": "Mine",
        "run": TINY | (run or {}),
        "tasks": {"any": {"dataset": dataset}},
        "tables": {"one": {"title": "t", "tasks": ["any"], "series": series, "seeds": [0]}},
    }
    found = configuration() | {"experiments": {"mine": own}}
    return [cell.runs[0] for cell in plan(found).items["mine", "one"].cells]


def calibration(folder: Path) -> Calibration:
    return Calibration(folder / "cost", room=folder / "room", holdings=HOLDINGS, prepared=folder / "data", device="cpu")


def test_runs_of_one_kind_differ_in_nothing_that_takes_time() -> None:
    def kind(method: str = "dp-agr", **run: Any) -> str:
        return cost.kind_of(runs_of({"a": {"method": method, "run": run}})[0], HOLDINGS["glyphs"])

    same = kind()
    assert kind("maml") == kind("dp-maml") == same  # the same clients, under other sums
    assert kind(clients={"count": 4000}, participation={"cohort": 100, "rounds": 40}) == same
    assert kind(client_update={"inner_rate": 0.1}, noise={"multiplier": 3.0}, clipping={"threshold": 9.0}) == same
    others = [
        kind(client_update={"inner_steps": 3}),
        kind(client_update={"order": 1}),
        kind(model={"filters": 8}),
        kind(model={"normalisation": "record"}),
        kind(clients={"query_per_class": 2}),
        kind(task={"ways": 4}),
        kind(validation={"every": 1}),
        kind("dp-agrlr"),
        kind("dp-reptile"),
        cost.kind_of(runs_of({"a": {"method": "dp-agr"}})[0], "classes 64/16/20 x 600 of 32x32x3"),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_a_run_costs_its_rounds_clients_and_validations(tmp_path: Path) -> None:
    measured = {"validation": {"every": 4, "tasks": 10}, "participation": {"cohort": 20, "rounds": 2}}
    longer = {"clients": {"count": 400}, "participation": {"cohort": 40, "rounds": 9}}
    runs = runs_of(
        {"a": {"method": "maml"}, "b": {"method": "maml", "run": measured | longer}, "c": {"method": "random"}}
    )
    rates = [
        Rate(round=0.5, client=0.25, validation=0.0, test=0.0, trained=None, unit="clients"),
        Rate(round=0.5, client=0.25, validation=2.0, test=0.0, trained=None, unit="clients"),
    ]
    keys = [cost._name(cost.kind_of(run, HOLDINGS["glyphs"])) for run in runs[:2]]
    first = calibration(tmp_path)
    write_json(first.path, {key: dataclasses.asdict(rate) for key, rate in zip(keys, rates, strict=True)})
    known = calibration(tmp_path)
    known.measure(runs, pytest.fail)  # nothing is left to be measured
    # 2 rounds of 0.5 s and 20 clients of 0.25 s; 9 of 0.5 s and 40, and after 4, 8 and 9 rounds 10 tasks of 2 s.
    assert [known.cost(run) for run in runs] == [
        Cost(method="maml", rounds=2, trained=40, unit="clients", seconds=11.0),
        Cost(method="maml", rounds=9, trained=360, unit="clients", seconds=94.5 + 60.0),
        Cost(method="random", rounds=0, trained=0, unit="clients", seconds=0.0),
    ]
    rows = cost.table([found for run in runs if (found := known.cost(run))])
    assert rows == [
        {"method": "maml", "runs": 2, "clients": 400, "records": 0, "hours": round(165.5 / 3600, 5)},
        {"method": "random", "runs": 1, "clients": 0, "records": 0, "hours": 0.0},
        {"method": "total", "runs": 3, "clients": 400, "records": 0, "hours": round(165.5 / 3600, 5)},
    ]
    assert "| maml | 2 | 400 clients | 2.76 min |" in cost.to_markdown(rows, ["said"]).splitlines()


def test_a_budget_ends_a_run_before_its_last_round(tmp_path: Path) -> None:
    budget = {"noise": {"multiplier": 1.0}, "budget": {"epsilon": 5.0, "profile": "holds", "delta": 1e-5}}
    several = {"participation": {"kind": "poisson", "cohort": 4, "rounds": 200}}
    (run,) = runs_of({"a": {"method": "dp-agr", "run": budget | several}})
    sampler = run.participation.plan(clients=40, seed=0).describe()
    allowed = rounds_allowed("holds", sampler, 1.0, 1e-5, 5.0, claims=run.claims, mechanism="gaussian")
    assert 0 < allowed < 200
    known = calibration(tmp_path)
    key = cost._name(cost.kind_of(run, HOLDINGS["glyphs"]))
    known._rates[key] = Rate(round=1.0, client=0.0, validation=0.0, test=0.0, trained=None, unit="clients")
    found = known.cost(run)
    assert found is not None and (found.rounds, found.seconds) == (allowed, allowed)


@pytest.mark.parametrize("method", ["dp-agr", "dp-agr-secagg", "dp-agrlr", "dp-reptile", "transfer"])
def test_each_kind_is_trained_by_the_loop_itself_and_once(tmp_path: Path, method: str) -> None:
    """The rates are of this machine, so that the test can say no more than that they are such."""
    whole = {"clients": {"count": 1, "partition": "fragments", "fragments": 1}} if method == "transfer" else {}
    (run,) = runs_of({"a": {"method": method, "run": whole}})
    said: list[str] = []
    first = calibration(tmp_path)
    first.measure([run, run.replace(seed=1)], said.append)
    assert len(said) == 2 and said[0].startswith(f"kind of work 1 of 1: {method}, glyphs")
    found = first.cost(run)
    assert found is not None and 0 < found.seconds < 3600 and found.trained > 0
    assert found.unit == ("records" if method == "transfer" else "clients")
    again = calibration(tmp_path)
    again.measure([run], pytest.fail)
    assert again.cost(run) == found
    again.path.write_text("damaged", encoding="utf-8")
    assert calibration(tmp_path)._rates == {}


@pytest.mark.parametrize("plan", ["balls-and-bins", "poisson"])
def test_no_cohort_of_a_run_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    """The rates are kept in a file, and the cohorts that a run's seed draws are secret: others are drawn for it."""
    made, seeds = Calibration._made, list[int]()
    monkeypatch.setattr(Calibration, "_made", lambda self, run: seeds.append(run.seed) or made(self, run))
    runs = runs_of({"a": {"method": "dp-agr", "run": {"participation": {"kind": plan}}}})
    calibration(tmp_path).measure([run.replace(seed=seed) for run in runs for seed in (0, 1)])
    assert len(seeds) == 1 and seeds[0] not in (0, 1)


def test_data_of_unknown_size_are_said_and_not_counted(tmp_path: Path) -> None:
    runs = runs_of({"a": {"method": "maml"}})
    known = Calibration(
        tmp_path / "cost", room=tmp_path / "room", holdings={}, prepared=tmp_path / "data", device="cpu"
    )
    with pytest.raises(BenchError, match=r"^no run can be counted before .* make results/data/glyphs/images\.npy$"):
        cost.report(runs, known, tmp_path, cores=2, say=print)
    assert known.holds(runs[0]) == ""
    summary = {"kind": "classes", "split_classes": {"train": 3, "validation": 2, "test": 1}, "examples_per_class": 9}
    write_json(tmp_path / "data" / "glyphs" / "summary.json", summary | {"image_shape": [8, 8, 1]})
    assert known.holds(runs[0]) == "classes 3/2/1 x 9 of 8x8x1"


def test_the_report_says_machine_cores_and_what_is_left_out(tmp_path: Path) -> None:
    runs = runs_of({"a": {"method": "maml"}})
    known = calibration(tmp_path)
    key = cost._name(cost.kind_of(runs[0], HOLDINGS["glyphs"]))
    known._rates[key] = Rate(round=3600.0, client=0.0, validation=0.0, test=0.0, trained=None, unit="clients")
    other = runs[0].replace(dataset="mine")
    said: list[str] = []
    written = cost.report([*runs, other], known, tmp_path, cores=4, say=said.append)
    assert [path.name for path in written] == ["cost.csv", "cost.md"]
    assert "| total | 1 | 40 clients | 2 h |" in said
    assert any(line.startswith("- On 4 cores 4 run side by side: 30 min by the clock") for line in said)
    assert any("Not counted: 1 run on mine" in line for line in said)
    assert (tmp_path / "cost.csv").read_text(encoding="utf-8").splitlines()[0] == "method,runs,clients,records,hours"
